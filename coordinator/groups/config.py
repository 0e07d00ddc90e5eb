"""What the group core is given: its bounds, the step of a decision, and what it asks about topics."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Protocol

from coordinator.runtime.effects import Step

MAX_REBALANCE_TIMEOUT_MS: Final = 86_400_000
_MAY_BE_ZERO: Final = frozenset({"initial_rebalance_delay_ms", "offset_metadata_max_bytes"})


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Bounds on what clients may ask for. Raises ``ValueError`` when a bound is below 1 or the session range is empty."""

    min_session_timeout_ms: int = 100
    """Shortest session a member may ask for, in ms. Kafka's 6,000 guards brokers that poll; here timers are cheap."""

    max_session_timeout_ms: int = 1_800_000
    """Longest session a member may ask for, in ms (30 minutes, as in Kafka): so long a dead member keeps its share."""

    max_rebalance_timeout_ms: int = MAX_REBALANCE_TIMEOUT_MS
    """Longest rebalance timeout, in ms (a day): so long one slow member can hold up its group."""

    offset_metadata_max_bytes: int = 4096
    """Longest metadata of a committed offset, in bytes of UTF-8 (Kafka counts UTF-16 units). All of it stays in memory."""

    max_pending_offsets: int = 10_000
    """Most partitions of one group whose offsets one transaction is to commit, and most that are staged: they are one record
    of the log, written anew by each TxnOffsetCommit of the transaction. All open transactions of a group have twice as many
    together."""

    max_pending_metadata_chars: int = 8_388_608
    """Most characters that the metadata of these may have together (8 Mi): in UTF-8 a record of 32 MiB at most."""

    offsets_retention_ms: int = 604_800_000
    """How long committed offsets are kept that no member uses, in ms (7 days, as in Kafka since KIP-186); see ``expiry``."""

    offsets_retention_check_interval_ms: int = 600_000
    """Pause between two looks for offsets that have expired, in ms (10 minutes, as in Kafka)."""

    max_group_id_bytes: int = 1024
    """Longest group id, in bytes of UTF-8. It is part of every key in the offsets log."""

    max_client_id_bytes: int = 1024
    """Longest client id of a member, in bytes of UTF-8. It is part of the member id, which every request repeats."""

    max_group_instance_id_bytes: int = 1024
    """Longest instance id of a static member, in bytes of UTF-8. It is part of the member id, as the client id otherwise."""

    max_reason_chars: int = 255
    """A reason that a client gives is cut to this many characters, as in Kafka; people read it."""

    max_protocols_per_member: int = 100
    """Most assignors one member may offer; each is counted at every join."""

    max_member_metadata_bytes: int = 1_048_576
    """Most bytes all protocols of one member may take, names included (1 MiB; a subscription takes hundreds of bytes)."""

    max_group_metadata_bytes: int = 33_554_432
    """Most bytes the protocols of all members of a group may take: the leader receives them in one frame of 64 MiB."""

    max_group_names_bytes: int = 15_728_640
    """Most bytes that ids, client ids and hosts of all members of a group may take, with what frames them (15 MiB: 50,000
    members with names of 100 bytes). With the metadata they are the leader's answer, with the assignments one record."""

    max_assignments_bytes: int = 16_777_216
    """Most bytes the assignments of one generation may take (16 MiB): with the metadata they make one record of the log."""

    initial_rebalance_delay_ms: int = 0
    """How long the first generation of an empty group is held back for more members, in ms (KIP-134; Kafka: 3,000).

    0: not at all. The delay saves rebalances that are dear where members learn of them at the next of their heartbeats; here
    a pending Heartbeat tells them at once, and a generation takes milliseconds. Worth setting where many members start at
    once and each rebalance costs them much: the delay begins anew while members keep coming, for their rebalance timeout at
    most.
    """

    group_max_size: int = 50_000
    """Most members of one group (KIP-389; Kafka sets no bound). Far above what one group can use by default; it then only
    stops a client that joins in a loop. A group that is larger when it is loaded rebalances at once, down to this size."""

    max_pending_per_group: int = 50_000
    """Most ids of one group that were given out and not used yet (KIP-394); for one more, the oldest is taken back, whose
    owner would be told to begin again. It only stops a client that asks for ids in a loop."""

    max_pending: int = 100_000
    """The same for all groups of a shard together: such a client may name another group each time."""

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if getattr(self, field.name) < least:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}, but it must be at least {least}")
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            raise ValueError(
                f"min_session_timeout_ms {self.min_session_timeout_ms} is above "
                f"max_session_timeout_ms {self.max_session_timeout_ms}"
            )


GroupStep = Step[GroupConfig]
"""One decision of the group core."""


class Topics(Protocol):
    """The topics that there are when a request is decided."""

    def has(self, topic: str, partition: int) -> bool:
        """Whether a topic has a partition of this number."""

    def topic_id(self, topic: str) -> str:
        """The id of a topic that exists; "" where topics have no ids."""

    def is_gone(self, topic: str, topic_id: str) -> bool:
        """Whether the topic for which an offset was committed has been deleted, also when another has its name now.

        ``topic_id`` is "" for an offset written by version 0.1.
        """


class AnyTopic:
    """Topics of which every partition exists and none is ever deleted."""

    def has(self, topic: str, partition: int) -> bool:
        """Every partition exists."""
        return True

    def topic_id(self, topic: str) -> str:
        """They have no ids."""
        return ""

    def is_gone(self, topic: str, topic_id: str) -> bool:
        """None is."""
        return False
