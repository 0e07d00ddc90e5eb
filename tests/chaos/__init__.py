"""Chaos with real processes: members, producers and a daemon are hurt on a seeded schedule, and their ledgers are judged.

A fault is a function in ``faults.py`` or ``group_faults.py``, a check one in ``record_checks.py``, ``group_checks.py`` or
``checks.py``, a kind of group an entry in ``groups.py``. A seed decides kinds, times and victims, as long as no kind is
added; real processes then race as they like, so a seed finds again with good odds, not for certain. What was found is
therefore kept as a small test of its own (``tests/integration/test_consumer_resilience.py`` and, for the last one,
``tests/client/producer/test_exactly_once_model.py``):

- seeds 7 and 11 (two owners): a member that woke up from SIGSTOP handed out what it had fetched before;
- kinds block-member, scale-up, leave-member (two owners): so did one whose handler had blocked through a rebalance;
- seed 89 (commits gone back): a record of an earlier assignment was committed just before it came again;
- seed 89 with all kinds (two owners): a share was announced after it was lost;
- seed 421 (not stable): a subscription that changed while the consumer started was owned and not read;
- seed 432 (not exactly once): batches that had failed were given new numbers, though one of their request was stored.
"""
