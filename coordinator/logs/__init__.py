"""Kafka's LogManager: which partition logs are open on this node, their maintenance and their limits."""
