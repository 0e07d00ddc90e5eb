"""Units of the client."""
