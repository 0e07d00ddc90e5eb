"""The settings a topic can have: Kafka's names, what values are legal, what holds where a topic says nothing.

Every setting has a default for the whole daemon, a field of ``coordinator.config.Settings`` of the same name with
underscores.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from coordinator.log.config import LogConfig
from coordinator.metadata.partitions import MAJORITY
from protocol.framing import MAX_BATCH_IN_FRAME

Value = int | float | str
"""What a setting holds: JSON, as the metadata store keeps it."""

_INT64: Final = 2**63 - 1
_LONGEST_NUMBER: Final = 24
_FRACTION: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(e-?[0-9]{1,3})?")
"""With an exponent as well: small ones are shown so."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds; ``special`` is another that is legal, and what it means."""

    low: int
    high: int = _INT64
    special: tuple[int, str] | None = None

    def parse(self, text: str) -> int | None:
        """The value, or None when it is none."""
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _LONGEST_NUMBER):
            return None
        number = int(text)
        if self.special is not None and number == self.special[0]:
            return number
        return number if self.low <= number <= self.high else None

    @property
    def legal(self) -> str:
        """What the value must be, in words."""
        numbers = f"a whole number from {self.low} to {self.high}"
        return numbers if self.special is None else f"{numbers}, or {self.special[0]}: {self.special[1]}"


@dataclass(frozen=True, slots=True)
class Share:
    """A number from 0 to 1."""

    legal: str = "a number from 0 to 1, such as 0.5"

    def parse(self, text: str) -> float | None:
        """The value, or None when it is none."""
        if len(text) > _LONGEST_NUMBER or not _FRACTION.fullmatch(text):
            return None
        return float(text) if 0 <= float(text) <= 1 else None


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words; "" is no word. A list of words counts in any order, with or without blanks."""

    words: Sequence[str]

    def parse(self, text: str) -> str | None:
        """The value, or None when it is none."""
        if len(text) > 100:
            return None
        given = sorted(part.strip() for part in text.split(","))
        return next((word for word in self.words if sorted(word.split(",")) == given), None)

    @property
    def legal(self) -> str:
        """What the value must be, in words."""
        return " or ".join(word or "nothing" for word in self.words)


@dataclass(frozen=True, slots=True)
class Kept:
    """Any text that is not too long: it is kept for who set it, and has no effect."""

    legal: str = "a text of at most 1000 characters"

    def parse(self, text: str) -> str | None:
        """The value, or None when it is none."""
        return text if len(text) <= _LONGEST_KEPT else None


_LONGEST_KEPT: Final = 1000

TOPIC_SETTINGS: Final[Mapping[str, Whole | Share | OneOf]] = {
    "cleanup.policy": OneOf(("delete", "compact", "compact,delete", "")),
    "delete.retention.ms": Whole(0),
    "max.compaction.lag.ms": Whole(1),
    "max.message.bytes": Whole(128, MAX_BATCH_IN_FRAME),
    "message.timestamp.type": OneOf(("CreateTime", "LogAppendTime")),
    "min.cleanable.dirty.ratio": Share(),
    "min.compaction.lag.ms": Whole(0),
    "min.insync.replicas": Whole(1, 2**31 - 1, (MAJORITY, "a majority of the replicas from 3 on, else 1")),
    "retention.bytes": Whole(-1),
    "retention.ms": Whole(-1),
    "segment.bytes": Whole(1024, 2**31 - 1),
    "segment.ms": Whole(1),
}
"""Settings a topic can have, and what their values may be."""

KEPT_PREFIX: Final = "kafka:"
KEPT_SETTINGS: Final[Mapping[str, str]] = {
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "preallocate": "false",
    "remote.storage.enable": "false",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "unclean.leader.election.enable": "false",
}
"""Settings of Kafka's topics that have no effect here, and what holds for them in Kafka. A topic keeps those that a Kafka
client sets, under ``KEPT_PREFIX`` and their name, as programs that manage topics set them and compare."""


class TopicConfigError(ValueError):
    """A setting that topics do not have, or a value it cannot have. The text names the legal ones."""


def setting(name: str) -> Whole | Share | OneOf | Kept:
    """What the values of a setting may be. Raises ``TopicConfigError`` for a name that topics do not know."""
    if name.startswith(KEPT_PREFIX) and name.removeprefix(KEPT_PREFIX) in KEPT_SETTINGS:
        return Kept()
    kind = TOPIC_SETTINGS.get(name)
    if kind is None:
        nearest = difflib.get_close_matches(name[:60].lower().replace("_", "."), TOPIC_SETTINGS, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(TOPIC_SETTINGS)}"
        raise TopicConfigError(f"topics have no setting {name[:60]!r}; {hint}")
    return kind


def parse_setting(name: str, text: str) -> Value:
    """The value of a setting. Raises ``TopicConfigError`` for an unknown name or an illegal value."""
    kind = setting(name)
    value = kind.parse(text)
    if value is None:
        raise TopicConfigError(f"{name} is {text[:60]!r}; it must be {kind.legal}")
    return value


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What holds for one topic, its own settings and the daemon's together. Units and meanings are Kafka's."""

    cleanup_policy: str
    """"" when all records stay until they are deleted (KIP-1161)."""
    delete_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int

    @property
    def compact(self) -> bool:
        """Whether compaction works on the topic; then every record needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether retention works on the topic."""
        return "delete" in self.cleanup_policy

    def log_config(self, flush: Literal["ack", "os"]) -> LogConfig:
        """The settings of the topic's logs."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            flush=flush,
            compact=self.compact,
            delete=self.delete,
            retention_ms=self.retention_ms,
            retention_bytes=self.retention_bytes,
            segment_ms=self.segment_ms,
            min_compaction_lag_ms=self.min_compaction_lag_ms,
            max_compaction_lag_ms=self.max_compaction_lag_ms,
            min_cleanable_dirty_ratio=self.min_cleanable_dirty_ratio,
            max_message_bytes=self.max_message_bytes,
            message_timestamp_type=self.message_timestamp_type,
            min_insync_replicas=self.min_insync_replicas,
            delete_retention_ms=self.delete_retention_ms,
        )


def effective_config(own: Mapping[str, Value], defaults: Mapping[str, Value]) -> TopicConfig:
    """What holds for a topic with the settings ``own``."""
    values = {name.replace(".", "_"): own.get(name, defaults[name]) for name in TOPIC_SETTINGS}
    config = TopicConfig(**values)  # type: ignore[arg-type]
    # Earlier versions allowed more, which no follower and no consumer would get.
    return replace(config, max_message_bytes=min(config.max_message_bytes, MAX_BATCH_IN_FRAME))


def check_together(config: TopicConfig) -> None:
    """Raises ``TopicConfigError`` when legal values do not go together."""
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise TopicConfigError(
            f"min.compaction.lag.ms is {config.min_compaction_lag_ms}, above max.compaction.lag.ms, "
            f"{config.max_compaction_lag_ms}"
        )
