"""The filesystem: the storage interface, the real files behind it, the executor of its blocking calls, the reserve."""
