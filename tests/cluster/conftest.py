"""What tests of clusters need of etcd's."""

from tests.etcd.conftest import etcd_binary

__all__ = ["etcd_binary"]
