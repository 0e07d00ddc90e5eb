"""Tests of connections, retries, deadlines and what clients know of a cluster."""
