"""What travels between Cohort's processes and what they store: frames, messages, errors, record batches, hashes, blobs.

No module here does I/O, reads a clock or draws a random number. The protocol is written down in ``protocol/README.md``.
"""
