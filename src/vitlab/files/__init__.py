"""Files: durable ones that vitlab writes, strict JSON, and files that a user names. Standard library only."""
