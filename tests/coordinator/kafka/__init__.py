"""The port for Kafka's clients."""
