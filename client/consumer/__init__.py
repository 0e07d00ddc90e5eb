"""The consumer: records of topics, shared out by a group or read alone."""

from client.consumer.consumer import Consumer

__all__ = ["Consumer"]
