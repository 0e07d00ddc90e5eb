"""What histories know of transactions: what their workers wrote down, and what the logs hold that is decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos.ledger import Entry
from tests.simulation.record_facts import Partition

if TYPE_CHECKING:
    from tests.simulation.history import CallFact

LISTS = "lists"
"""The topic that list-append workers write to, in transactions only."""
COPIES = "copies"
"""The topic of what the transformers make of the records they read."""
KAFKA_COPIES = "kafka-copies"
"""The same of Kafka's transformers."""
TRANSACTIONAL = (LISTS, COPIES, KAFKA_COPIES)
"""Topics that are judged by what is decided in them."""
TRANSFORMERS = "transformers"
"""The group of the transformers."""
KAFKA_TRANSFORMERS = "kafka-transformers"
"""The group of those with Kafka's protocol."""


class Kept(NamedTuple):
    """A transaction of a Kafka producer that keeps its epoch, by its process and the number that it has there."""

    process: str
    producer_id: int
    epoch: int
    number: int

    @classmethod
    def of(cls, client_id: str) -> Kept | None:
        """The transaction that a client id names."""
        process, *numbers = client_id.split("#")
        return cls(process, *map(int, numbers)) if numbers else None

    @property
    def client_id(self) -> str:
        """What its requests are sent under: by it a late one is told from those of the next transaction."""
        return "#".join(map(str, self))

    def may_be_taken_for(self, other: Kept) -> bool:
        """Whether requests of both say the same of whose they are."""
        return self[:3] == other[:3]

    @property
    def attempt(self) -> str:
        """As a list-append history calls it."""
        return f"{self.process}:{self.number}"


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
    transforming: dict[str, str] = field(default_factory=dict)
    """Groups that transform, and the topics of their copies."""
    kept: dict[str, Kept] = field(default_factory=dict)
    """By process the transaction under a kept epoch that it is at."""
    under_way: dict[str, list[CallFact]] = field(default_factory=dict)
    """Requests of that transaction that have reached a daemon."""
    late: dict[Kept, None] = field(default_factory=dict)
    """Transactions under a kept epoch that a request of which arrived, or may have been carried out, in a later one of the
    same epoch; and that later one. Nobody can tell which of the two was meant (docs/kafka-clients.md)."""
    unknown: list[str] = field(default_factory=list)
    """Transactions that were open in a log and not known to their coordinator."""

    def is_exactly_once(self, group: str) -> bool:
        """Whether each input of a group that transforms has one copy, as no request of a kept epoch came late there."""
        return group != KAFKA_TRANSFORMERS or not any(kept.process.startswith(group[:-1]) for kept in self.late)

    def begins(self, now: Kept) -> None:
        """A producer that keeps its epoch begins a transaction; what is not answered of the one before may come late."""
        before, under_way = self.kept.get(now.process), self.under_way.pop(now.process, [])
        if before is not None and before.may_be_taken_for(now) and any(not fact.answers for fact in under_way):
            self.late |= {before: None, now: None}
        self.kept[now.process] = now

    def arrives(self, meant: Kept, fact: CallFact) -> None:
        """A request of such a transaction reaches a daemon."""
        now = self.kept[meant.process]
        if meant == now:
            self.under_way.setdefault(meant.process, []).append(fact)
        elif meant.may_be_taken_for(now):
            self.late |= {meant: None, now: None}
