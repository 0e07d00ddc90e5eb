"""A query of Spark that is exactly once, on a cluster of two workers, with SIGKILL for its processes at random instants.

``victims`` are what is killed, ``pipeline`` is the query with all its processes, ``run`` kills and checks.
"""
