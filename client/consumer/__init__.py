"""The consumer: records of topics, shared out by a group or read alone."""

from client.consumer.consumer import Consumer
from client.consumer.error_policy import DeadLetter, Retry

__all__ = ["Consumer", "DeadLetter", "Retry"]
