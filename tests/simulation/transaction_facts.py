"""What histories know of transactions: what their workers wrote down, and what the logs hold that is decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chaos.ledger import Entry
from tests.simulation.record_facts import Partition

LISTS = "lists"
"""The topic that list-append workers write to, in transactions only."""
COPIES = "copies"
"""The topic of what the transformers make of the records they read."""
TRANSACTIONAL = (LISTS, COPIES)
"""Topics that are judged by what is decided in them."""
TRANSFORMERS = "transformers"
"""The group of the transformers."""


@dataclass(slots=True)
class TransactionFacts:
    """The part of a history that is about transactions."""

    ledgers: dict[str, list[Entry]] = field(default_factory=dict)
    """What each process of a list-append worker wrote down."""
    committed: dict[Partition, list[tuple[int, str]]] = field(default_factory=dict)
    """Offset and value of every decided and committed record at the end."""
    undecided: list[tuple[Partition, int, int]] = field(default_factory=list)
    """Partitions with an open transaction at the end: its first offset, and the end of the log."""
    stable: list[tuple[int, Partition, int, int]] = field(default_factory=list)
    """Life of the daemon, partition, last stable offset and high watermark, whenever somebody looked."""
    transforming: bool = False
    """Whether there are transformers."""
    unknown: list[str] = field(default_factory=list)
    """Transactions that were open in a log and not known to their coordinator."""
