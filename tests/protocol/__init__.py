"""Units of the protocol."""
