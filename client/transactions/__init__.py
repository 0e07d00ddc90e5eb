"""Transactions of a producer: the identity that its transactional id has, the transaction in progress, and how it ends."""
