"""The producer: records in, acknowledgements out."""

from client.producer.producer import Producer

__all__ = ["Producer"]
