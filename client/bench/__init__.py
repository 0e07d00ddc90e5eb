"""Benchmarks of ``cohort bench``: one module each, entered in ``registry``. Every figure comes with its floor.

What is timed here is the machine, never a rule of the system, so these modules read ``time.perf_counter`` and not the
event loop's clock, which uvloop advances by whole milliseconds.
"""
