"""Clusters of real processes: daemons, their metadata store, and proxies where the network is to be cut."""
