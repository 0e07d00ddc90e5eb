"""The type of a custom partitioner, at the place where programs import it from."""

from client.producer.partitioner import Partitioner

__all__ = ["Partitioner"]
