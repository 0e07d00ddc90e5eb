"""Histories of the transaction core with leaders' logs, a group shard and clients as separate nodes that crash apart."""
