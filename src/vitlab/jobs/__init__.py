"""Map over runs or shards: one after the other here, in local processes, or on Ray."""
