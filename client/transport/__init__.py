"""The way to the daemons: connections, the picture of the cluster, retries and deadlines."""
