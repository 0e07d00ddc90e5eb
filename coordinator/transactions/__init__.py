"""The transaction coordinator: a pure core for each partition of ``__transaction_state``."""
