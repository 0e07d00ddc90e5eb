"""Looking at a data directory while no daemon uses it: what its files say, and whether they are what was written.

Nothing here writes. It is a program of its own (``python -m coordinator.inspection``), which ``cohort log dump`` and
``cohort check`` start.
"""
