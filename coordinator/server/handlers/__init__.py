"""What the daemon does with each request: one module a family of messages."""
