"""Run jobs one after the other in this process, in local processes, or on Ray."""
