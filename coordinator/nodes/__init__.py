"""Nodes of a cluster: what each is, and whether it has what it said it had."""
