"""What happened in one simulated history: facts for the invariants, and a story for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.simulation.cluster_facts import ClusterFacts
from tests.simulation.record_facts import Partition as Partition
from tests.simulation.record_facts import RecordFacts
from tests.simulation.transaction_facts import TransactionFacts


class Event(NamedTuple):
    """A line of the story."""

    at_s: float
    who: str
    what: str


class Sent(NamedTuple):
    """A value handed to a producer."""

    producer: str
    number: int
    partition: Partition


class Acknowledged(NamedTuple):
    """A value whose acknowledgement reached its producer."""

    partition: Partition
    offset: int
    at_s: float


NO_STINT: Final = -1
"""Of records that a consumer gives to its program in any order."""


class HandedOut(NamedTuple):
    """A record a consumer gave to its program. ``stint`` numbers the assignments of a partition to a consumer."""

    at_s: float
    group: str
    consumer: str
    generation: int
    partition: Partition
    offset: int
    value: str
    stint: int


class Committed(NamedTuple):
    """An offset applied to the coordinator's live state (``life`` numbers its lives), or acknowledged to a client."""

    at_s: float
    life: int
    group: str
    partition: Partition
    offset: int


class Accepted(NamedTuple):
    """A commit the coordinator accepted from a member, and what it had told the group by then."""

    at_s: float
    group: str
    member: str
    generation: int
    told_generation: int
    members: tuple[str, ...]


class Told(NamedTuple):
    """A generation in an answer of the coordinator: ``what`` is "join" or "sync", ``share`` is what a sync gave."""

    at_s: float
    life: int
    what: str
    group: str
    member: str
    generation: int
    asked_s: float
    """When the request came."""
    share: tuple[Partition, ...] = ()
    instance: str | None = None
    reason: str = ""
    """Why the generation came about."""

    @property
    def who(self) -> str:
        """The member as its group knows it: a static one is the same through its restarts."""
        return self.instance or self.member


class Ended(NamedTuple):
    """The coordinator saw a member's ownership end: it asked to join again, left, was removed or replaced.

    ``keeps`` is what a cooperative member still holds although it asks to join again.
    """

    at_s: float
    group: str
    member: str
    how: str
    keeps: tuple[Partition, ...] = ()


class Gone(NamedTuple):
    """The coordinator erased a group: its generations begin anew."""

    at_s: float
    group: str


class Erased(NamedTuple):
    """A committed offset was erased on request or because it expired."""

    at_s: float
    life: int
    group: str
    partition: Partition


class Deleted(NamedTuple):
    """A client was told that a group is deleted."""

    at_s: float
    asked_s: float
    group: str


class Cut(NamedTuple):
    """The file of an active segment lost its end, from an offset on, when its daemon was killed."""

    at_s: float
    noted_until_s: float
    """What was acknowledged before is named by the checkpoint."""
    partition: Partition
    end_offset: int


class Served(NamedTuple):
    """A high watermark the daemon showed, with the end of the records that came with it (-1: none), or that a log has."""

    daemon: int
    partition: Partition
    high_watermark: int
    end: int
    looked_at: bool = False


class Flip(NamedTuple):
    """A bit that was flipped in the batch of ``offset``; ``proven`` if something behind it says that it was on disk.

    What says so ends at ``proof_end`` of the same file; at 0 if it is in another one.
    """

    partition: Partition
    offset: int
    proven: bool
    path: str = ""
    proof_end: int = 0

    def after_cut(self, path: str, size: int) -> Flip:
        """What it is once the file ``path`` has only ``size`` bytes: a fault may take the proof of an earlier one."""
        return self._replace(proven=False) if path == self.path and size < self.proof_end else self


@dataclass(slots=True, eq=False)
class CallFact:
    """A request that reached the daemon."""

    kind: str
    daemon: int
    at_s: float
    answers: int = 0
    expects_answer: bool = True
    connection: object | None = None


LETTERS: Final = "letters"
"""The topic of dead letters."""


@dataclass(slots=True)
class History:
    """Everything the invariants look at. ``now`` is the loop's clock."""

    now: Callable[[], float]
    nodes: int = 1
    events: list[Event] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    retried: dict[str, None] = field(default_factory=dict)
    """Producers that sent something a second time."""
    handed_out: list[HandedOut] = field(default_factory=list)
    applied: list[Committed | Erased] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    """Members that lost their place although every heartbeat of theirs had arrived in time."""
    outlived: list[str] = field(default_factory=list)
    """Offsets that were committed for a topic and shown for another one of the same name."""
    commits: list[Committed] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    ownership: list[Told | Ended | Gone] = field(default_factory=list)
    overruled: dict[str, float] = field(default_factory=dict)
    """When a member lost its place without being asked, by its id: to another process with its instance id, or because an
    administrator removed it."""
    finished: dict[tuple[str, Partition, int], float] = field(default_factory=dict)
    """When a handler was first done with a record, by group, partition and offset."""
    put_aside: dict[tuple[str, Partition, int], str] = field(default_factory=dict)
    """Values of records that failed and are to become dead letters, by group, partition and offset."""
    dead_letters: dict[str, None] = field(default_factory=dict)
    """Values of the dead letters that are on disk at the end."""
    overrun: list[str] = field(default_factory=list)
    """Records that were in a handler's hands after their partition was given up."""
    disturbed: list[str] = field(default_factory=list)
    """Static members that came back as they were and made a rebalance."""
    expired_early: list[str] = field(default_factory=list)
    """Offsets that expired although the rules keep them."""
    served: list[Served] = field(default_factory=list)
    calls: list[CallFact] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    """Two clients that both took themselves for the owner when one handed something out."""
    mismatches: list[str] = field(default_factory=list)
    """Differences between a log's replay and the live state."""
    exceeded: list[str] = field(default_factory=list)
    """Bounds that did not hold."""
    unexpected: list[str] = field(default_factory=list)
    """Failures nobody should ever see: errors in logs, programs that ended with an exception."""
    unclean: list[str] = field(default_factory=list)
    """Starts that took records for lost although nothing had happened to the disk."""
    not_started: list[str] = field(default_factory=list)
    """Starts of a daemon on its own data directory that a full disk prevented."""
    not_live: list[str] = field(default_factory=list)
    """What was still wrong when the time for healing was over."""
    shown: list[Committed] = field(default_factory=list)
    """Offsets that the coordinator told clients when they asked."""
    flips: list[Flip] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    damaged: dict[Partition, None] = field(default_factory=dict)
    """Partitions whose files lost a bit: their records may be refused, never altered."""
    log: dict[Partition, list[tuple[int, str]]] = field(default_factory=dict)
    """Offset and value of every record at the end."""
    final_offsets: dict[tuple[str, Partition], int] = field(default_factory=dict)
    must_read: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Groups that read these topics from their beginning."""
    handled: dict[str, None] = field(default_factory=dict)
    """Groups with handlers: of a record whose handler gave it back the next one is the same record."""
    must_finish: dict[str, None] = field(default_factory=dict)
    """Those that read from the beginning in which a record is read when its handler is done with it."""
    told_late: list[str] = field(default_factory=list)
    """Assignments that programs were told of when their member could not hold them any more."""
    following: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By host, consumers that begin at the end of every topic: the name of the process and since when it reads."""
    appeared: dict[Partition, float] = field(default_factory=dict)
    """Before when a partition that these consumers are to read can not have existed."""
    cooperative: dict[str, None] = field(default_factory=dict)
    """Groups of which every member was cooperative so far."""
    eager: dict[str, None] = field(default_factory=dict)
    """Groups with a member that was not."""
    records: RecordFacts = field(default_factory=RecordFacts)
    transactions: TransactionFacts = field(default_factory=TransactionFacts)
    cluster: ClusterFacts = field(default_factory=ClusterFacts)
    seen_s: float = 0.0
    """When the final log and offsets were noted."""
    complete: bool = False
    """Whether the history came to its end, so that what is missing is missing for good."""

    def read(self) -> set[tuple[str, Partition, int]]:
        """Group, partition and offset of every record that was read."""
        handed_out = {(record.group, record.partition, record.offset) for record in self.handed_out}
        kept = {read for read in self.put_aside if self.is_kept(read)}
        return {read for read in handed_out if read[0] not in self.must_finish} | set(self.finished) | kept

    def is_kept(self, read: tuple[str, Partition, int]) -> bool:
        """Whether a record that failed in a group is a dead letter on disk."""
        return self.put_aside.get(read) in self.dead_letters or (
            (LETTERS, 0) in self.damaged and read in self.put_aside
        )

    def unfollowed(self) -> list[tuple[str, str, Acknowledged]]:
        """Records of partitions that appeared while a consumer read, and that it was not handed: whose, which, where."""
        handed_out = {(record.consumer, record.partition, record.offset) for record in self.handed_out}
        return [
            (name, value, ack)
            for name, since_s in self.following.values()
            for value, ack in self.acknowledged.items()
            if self.appeared.get(ack.partition, -1.0) > since_s
            and (name, ack.partition, ack.offset) not in handed_out
            and ack.partition not in self.damaged
        ]

    def say(self, who: str, what: str) -> None:
        """Adds a line to the story."""
        self.events.append(Event(self.now(), who, what))


def name_of(partition: Partition) -> str:
    """``orders-3``."""
    return f"{partition[0]}-{partition[1]}"
