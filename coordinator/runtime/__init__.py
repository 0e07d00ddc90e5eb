"""The shell around the group core: shards with their logs, timers and replies."""
