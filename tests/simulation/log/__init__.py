"""The log of one partition alone, with transactions: histories on a simulated disk, compared with a plain list."""
