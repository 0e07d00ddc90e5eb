"""The metadata store over a real etcd, which is built from the module that ``go.mod`` pins."""
