"""Consume, transform, produce under the chaos faults: ``process`` groups with transactions beside one without.

Every input is answered once by each group with transactions and at least once by the other, whatever is killed, suspended,
cut off or full; a plain count of what was stored judges. ``python -m tests.chaos.exactly_once`` runs it.
"""
