"""The controller of a cluster: who leads what."""
