"""Replication of one partition: the decisions of its leader and its followers, pure. What carries them out comes on top."""
