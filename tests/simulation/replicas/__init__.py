"""The rules of replication in simulated histories of one partition."""
