"""Kafka's wire protocol: messages of Kafka's own schemas, their codec, request and response headers, record batches."""
