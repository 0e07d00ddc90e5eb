"""What an observer of all nodes knows: what is decided and on disk, what was told to whom, what readers have seen.

Each invariant is a method of its name; it raises ``ViolationError``, which names it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from coordinator.transactions.records import (
    Ended,
    Identity,
    IdentityRecord,
    MemberRecord,
    MemberTombstone,
    TransactionRecord,
)
from protocol.messages.transactions import NO_VERSION
from tests.simulation.rings import ViolationError

INVARIANTS: Final = frozenset(
    {
        "transactions_are_whole",
        "undecided_records_are_never_read",
        "aborted_records_are_never_read",
        "what_was_read_stays",
        "the_stable_end_never_falls",
        "each_input_is_answered_once",
        "offsets_go_with_their_outputs",
        "no_transaction_hangs",
        "replaced_producers_write_nothing",
        "a_late_end_ends_its_own_transaction",
        "outcomes_told_are_true",
        "each_version_is_stored_once",
        "open_in_a_log_is_known_to_its_coordinator",
        "replay_equals_live_state",
        "recovered_logs_know_the_same_transactions",
        "a_transaction_is_decided_once",
        "each_request_is_answered_once",
        "no_request_waits_beyond_its_bound",
        "parked_requests_go_on_with_their_markers",
        "nothing_stays_when_every_client_is_gone",
    }
)


def violated(invariant: str, message: str) -> NoReturn:
    """Ends the history."""
    assert invariant in INVARIANTS, invariant
    raise ViolationError(invariant, message)


@dataclass(slots=True)
class Attempt:
    """What one producer writes in one transaction: all of it is to be read, or none."""

    number: int
    name: Identity
    values: set[tuple[int, object, str]] = field(default_factory=set)
    """Attempt, content and partition of each record that was acknowledged."""
    may_commit: bool = False
    """Whether a commit was asked for."""
    told: bool | None = None
    """Whether a producer that keeps its epoch was told that it is committed, or aborted."""


class Facts:
    """The observer's book."""

    def __init__(self) -> None:
        self.verdicts: dict[Identity, bool] = {}
        """By producer id and epoch, also of members: whether its records are committed, as the coordinator's disk says."""
        self.ended: dict[Identity, Ended] = {}
        """How epochs of transactional ids ended, as the coordinator's disk says."""
        self.known: dict[Identity, set[tuple[str, int]]] = {}
        """Where transactions write that are not complete, as the coordinator's disk says: by writer."""
        self.committed_versions: dict[str, int] = {}
        self.metadata: dict[str, str] = {}
        """What is stored with the committed version of an id."""
        self.owners: dict[Identity, int] = {}
        """The client that was told an identity."""
        self.visible: dict[tuple[int, object, str], int] = defaultdict(int)
        self.attempts: list[Attempt] = []
        self.kept: set[Identity] = set()
        """What producers keep: they name all their transactions by it."""

    def attempt(self, name: Identity) -> Attempt:
        """A producer begins to write."""
        attempt = Attempt(len(self.attempts), name)
        self.attempts.append(attempt)
        return attempt

    def on_disk(self, record: TransactionRecord) -> None:
        """A record of the coordinator is on disk."""
        if isinstance(record, IdentityRecord):
            self._decided(record)
        elif isinstance(record, MemberRecord):
            writer = Identity(record.producer_id, record.transaction.epoch)
            places = {(topic.topic_id, partition) for topic in record.topics for partition in topic.partitions}
            self.known.setdefault(writer, set()).update(places)
        elif isinstance(record, MemberTombstone):
            self.known.pop(Identity(record.producer_id, record.transaction.epoch), None)
        else:
            self.committed_versions.pop(record.transactional_id, None)

    def _decided(self, record: IdentityRecord) -> None:
        if record.completing is not None:
            for producer_id, committed in record.completing.verdicts:
                writer = Identity(producer_id, record.completing.epoch)
                if self.verdicts.setdefault(writer, committed) != committed:
                    violated("a_transaction_is_decided_once", f"{writer} was {not committed}, and is {committed}")
        if record.kept is not None:
            self.kept.add(record.kept)
        if record.previous is not None and record.previous.identity not in self.kept:
            how = self.ended.setdefault(record.previous.identity, record.previous.how)
            if how is not record.previous.how:
                violated("a_transaction_is_decided_once", f"{record.previous} ended as {how.name} before")
        version = self.committed_versions.get(record.transactional_id, NO_VERSION)
        if record.committed_version < version:
            violated("each_version_is_stored_once", f"version {version} was committed, now {record.committed_version}")
        metadata = self.metadata.get(record.transactional_id, "")
        if record.committed_version == version > NO_VERSION and record.committed_metadata != metadata:
            name = "each_version_is_stored_once"
            violated(name, f"version {version} was that of {metadata}, now of {record.committed_metadata}")
        self.committed_versions[record.transactional_id] = record.committed_version
        self.metadata[record.transactional_id] = record.committed_metadata

    def identity_told(self, identity: Identity, client: int) -> None:
        """A producer hears that it has an identity: none but one ever does."""
        if self.owners.setdefault(identity, client) != client:
            violated(
                "replaced_producers_write_nothing", f"{identity} is told to {client} and to {self.owners[identity]}"
            )

    def committed_told(self, identity: Identity) -> None:
        """A producer hears that its transaction is committed."""
        if self.ended.get(identity) is not Ended.COMMITTED:
            violated("outcomes_told_are_true", f"{identity} is told committed, and is {self.ended.get(identity)}")

    def aborted_told(self, identity: Identity) -> None:
        """A producer hears that its transaction is aborted."""
        if self.ended.get(identity, Ended.COMMITTED) is Ended.COMMITTED:
            violated("outcomes_told_are_true", f"{identity} is told aborted, and is {self.ended.get(identity)}")

    def version_told(self, transactional_id: str, version: int, answer: Any = None) -> None:
        """A producer hears that a version is committed, and in an answer to a member of which transaction."""
        if self.committed_versions.get(transactional_id, NO_VERSION) < version:
            violated("outcomes_told_are_true", f"version {version} of {transactional_id} is told committed")
        if answer is not None and answer.committed_version == version == self.committed_versions[transactional_id]:
            told, stored = answer.committed_metadata, self.metadata[transactional_id]
            if told != stored:
                violated("outcomes_told_are_true", f"version {version} is told as that of {told}, and is of {stored}")

    def read(self, writer: Identity, values: Iterable[tuple[int, object, str]]) -> None:
        """A reader with read_committed gets records."""
        committed = self.verdicts.get(writer)
        if committed is None:
            violated("undecided_records_are_never_read", f"records of {writer} are read")
        if not committed:
            violated("aborted_records_are_never_read", f"records of {writer} are read, which is aborted")
        for value in values:
            self.visible[value] += 1

    def opened(self, writer: Identity, place: tuple[str, int]) -> None:
        """A transaction opens in a log."""
        if place not in self.known.get(writer, ()):
            violated("open_in_a_log_is_known_to_its_coordinator", f"{writer} opens in {place}")

    def transactions_are_whole(self) -> None:
        """Every attempt is read as a whole or not at all, and not at all if no commit was asked for."""
        for attempt in self.attempts:
            read = sum(value in self.visible for value in attempt.values)
            if read not in (0, len(attempt.values)) or (read and not attempt.may_commit):
                violated(
                    "transactions_are_whole", f"{read} of {len(attempt.values)} records of {attempt.name} are read"
                )
            if attempt.told is not None and read != len(attempt.values) * attempt.told:
                told = "committed" if attempt.told else "aborted"
                violated("outcomes_told_are_true", f"{attempt} is told {told}, {read} of its records are read")
            if attempt.values and self.verdicts.get(attempt.name) and not read:
                violated("transactions_are_whole", f"{attempt.name} is committed and cannot be read")
