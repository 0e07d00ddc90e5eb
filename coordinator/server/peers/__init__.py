"""Nodes of a cluster among themselves: connections to other nodes, and the port on which this one takes theirs."""
