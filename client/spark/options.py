"""The options of source and sink: names, defaults, and every fault told at once. Pure.

Names are those of Spark's own Kafka source, so that a job moves by changing its format. They count in any case;
``kafka.`` or ``cohort.`` before ``bootstrap.servers`` and other settings of the connection may stay.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from client.producer.config import MAX_REQUEST_BYTES
from client.spark.errors import OptionsError
from client.transport.metadata import parse_bootstrap_servers
from client.types.records import ISOLATION_LEVELS
from protocol.messages.records import READ_COMMITTED
from protocol.subscription import TopicPartition

EARLIEST: Final = -2
"""In offset JSON: the first offset that is there, as in Kafka's source."""
LATEST: Final = -1
"""In offset JSON: the offset after the last record."""

Where = Literal["earliest", "latest", "committed"]
Start = Where | Mapping[TopicPartition, int]
"""Where reading begins or ends: the same for all partitions, or an offset for each."""

T = TypeVar("T")
D = TypeVar("D")

_BATCH_BYTES: Final = 1_000_000
"""Below ``max.message.bytes`` of a topic that says nothing of it. Each batch costs a task 0.1 ms, whatever it holds."""
_MOST_MS: Final = 2**31 - 1
"""What a request has room for."""
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_CONNECTION: Final = ("bootstrap.servers", "client.id", "request.timeout.ms")
_SOURCE: Final = (
    *_CONNECTION,
    *("subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp"),
    *("startingOffsetsByTimestamp", "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss", "pushdown"),
    *("startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("maxBytesPerTrigger", "minPartitions", "includeHeaders", "group.id", "groupIdPrefix", "session.timeout.ms"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "fetch.max.bytes"),
    "isolation.level",
)
_SINK: Final = (
    *_CONNECTION,
    *("topic", "delivery.timeout.ms", "batch.size", "max.request.size", "includeHeaders", "compression.type"),
    *("delivery", "transactional.id", "transaction.version", "transaction.timeout.ms", "group.id"),
)
_SECURITY: Final = ("security.", "sasl.", "ssl.")


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Which topics a query reads: names, a pattern for whole names, or single partitions; one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def takes(self, topic: str) -> bool:
        """Whether a topic is one of these. Internal topics match no pattern."""
        if self.pattern:
            return not topic.startswith("__") and re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(partition.topic == topic for partition in self.partitions)

    def reads(self, partition: TopicPartition) -> bool:
        """Whether a partition is one of these."""
        return partition in self.partitions if self.partitions else self.takes(partition.topic)

    @property
    def named(self) -> frozenset[str] | None:
        """The topics by name, ``None`` when a pattern decides."""
        if self.pattern:
            return None
        return frozenset(self.topics) | {partition.topic for partition in self.partitions}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Where the daemons are, and how long one call to them may take in ms."""

    bootstrap_servers: str
    client_id: str
    request_timeout_ms: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything a reader knows; picklable. Times in ms, except those in ``_s``.

    ``group_id_prefix`` begins the name of the group made up for a stream without ``group_id``; the checkpoint keeps it.
    ``isolation`` is ``READ_COMMITTED`` or ``READ_UNCOMMITTED``.
    ``offset_retries`` is how often asking for metadata and offsets is begun again after ``request_timeout_ms`` without an
    answer.
    """

    connection: ConnectionOptions
    subscribed: Subscribed
    starting: Start
    ending: Start
    starting_timestamps: int | Mapping[TopicPartition, int] | None
    ending_timestamps: int | Mapping[TopicPartition, int] | None
    without_later_records: Literal["error", "latest"]
    max_offsets: int | None
    min_offsets: int | None
    max_trigger_delay_s: float
    max_bytes: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_headers: bool
    group_id: str | None
    group_id_prefix: str | None
    offset_retries: int
    offset_retry_interval_s: float
    session_timeout_ms: int
    fetch_max_bytes: int
    pushdown: bool
    isolation: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything a writer knows; picklable. ``topic`` is for rows that name none. ``batch_bytes`` bounds a batch of several
    rows, ``max_request_bytes`` a request, and so a single row as well.

    ``exactly_once`` writes in transactions of ``transactional_id``, None for one that is made up; ``by_default`` when nobody
    said so. ``version`` is that of a write which Spark gives no batch id. ``group_ids`` are the groups of the sources: their
    offsets are committed with the rows.
    """

    connection: ConnectionOptions
    topic: str | None
    delivery_timeout_ms: int
    batch_bytes: int
    max_request_bytes: int
    compression: Literal["gzip", "zstd"] | None
    exactly_once: bool
    by_default: bool
    transactional_id: str | None
    version: int | None
    transaction_timeout_ms: int
    group_ids: tuple[str, ...]


class _Options:
    """Takes options one by one and collects what is wrong with them."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self.faults: list[str] = []
        self.others: dict[str, str] = {}
        self._given: dict[str, str] = {}
        names = {name.lower(): name for name in known}
        keys: dict[str, str] = {}
        for key, value in sorted(given.items()):
            name, prefixed = key.lower(), False
            for prefix in ("kafka.", "cohort."):
                if name.startswith(prefix):
                    name, prefixed = name.removeprefix(prefix), True
            if name in names:
                if self._given.get(name, value).strip() != value.strip():
                    self.faults.append(
                        f"{keys[name]} is {self._given[name]!r}, and {key} is {value!r}; give one of them"
                    )
                self._given[name], keys[name] = value, key
            elif name.startswith(_SECURITY) and value.upper() != "PLAINTEXT":
                self.faults.append(f"{key}: daemons speak neither TLS nor SASL, so this cannot be had; leave it out")
            elif not prefixed:  # Spark adds options of its own, and other clients' settings have no meaning here
                self.others[name] = value
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
                if near:
                    self.faults.append(f"{key} is unknown; is {names[near[0]]} meant?")

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return None if value is None or not value.strip() else value.strip()

    def given(self, name: str) -> bool:
        return self.text(name) is not None

    def parsed(self, name: str, parse: Callable[[str], T], default: D, what: str) -> T | D:
        """The option as ``parse`` makes it; a fault that says ``what`` it must be when that raises ``ValueError``."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError:
            self.faults.append(f"{name} is {text!r}; it must be {what}")
            return default

    def number(self, name: str, default: T, low: int = 1, high: int | None = None) -> int | T:
        def parse(text: str) -> int:
            number = int(text)
            if number < low or (high is not None and number > high):
                raise ValueError
            return number

        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        found = self.parsed(name, parse, None, f"a whole number {bounds}")
        return default if found is None else found

    def flag(self, name: str, default: bool) -> bool:
        words = {"true": True, "false": False}

        def parse(text: str) -> bool:
            if text.lower() not in words:
                raise ValueError
            return words[text.lower()]

        return self.parsed(name, parse, default, "true or false")

    def finish(self) -> None:
        if self.faults:
            raise OptionsError(self.faults)


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a reader. Raises ``OptionsError`` that names everything that is wrong."""
    options = _Options(given, _SOURCE)
    connection = _connection(options, "kafkaConsumer.pollTimeoutMs")
    subscribed = _subscribed(options)
    starting = _offsets(options, "startingOffsets", "latest" if streaming else "earliest", streaming)
    ending = _offsets(options, "endingOffsets", "latest", streaming=False)
    if not streaming and starting == "latest":
        options.faults.append('startingOffsets is "latest", with which a batch reads nothing; use earliest or JSON')
    if ending in ("earliest", "committed"):
        options.faults.append(f'endingOffsets is "{ending}"; it must be latest, or JSON with an offset a partition')
    if streaming:
        names = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        options.faults += [f"{name} is for batches; a stream has no end" for name in names if options.given(name)]
    else:
        options.faults += [
            f"{name} is for streams; a batch reads everything up to endingOffsets, so leave it out"
            for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxTriggerDelay")
            if options.given(name)
        ]
    group_id = options.text("group.id")
    if not streaming and options.given("groupIdPrefix"):
        options.faults.append("groupIdPrefix names the group of a stream, and a batch commits to none; leave it out")
    if starting == "committed" and group_id is None:
        options.faults.append("startingOffsets is committed, which needs group.id")
    minimum, maximum = options.number("minOffsetsPerTrigger", None), options.number("maxOffsetsPerTrigger", None)
    if minimum is not None and maximum is not None and minimum > maximum:
        options.faults.append(f"minOffsetsPerTrigger {minimum} is above maxOffsetsPerTrigger {maximum}")
    found = SourceOptions(
        connection=connection,
        subscribed=subscribed,
        starting=starting,
        ending=ending,
        starting_timestamps=_timestamps(options, "starting"),
        ending_timestamps=_timestamps(options, "ending"),
        without_later_records=options.parsed(
            "startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error", "error or latest"
        ),
        max_offsets=maximum,
        min_offsets=minimum,
        max_trigger_delay_s=options.parsed("maxTriggerDelay", duration_s, 900.0, "a time such as 30s or 15m"),
        max_bytes=options.number("maxBytesPerTrigger", None),
        min_partitions=options.number("minPartitions", None),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
        group_id=group_id,
        group_id_prefix=options.text("groupIdPrefix") if group_id is None else None,
        offset_retries=options.number("fetchOffset.numRetries", 0, low=0),
        offset_retry_interval_s=options.number("fetchOffset.retryIntervalMs", 10, low=0) / 1000,
        session_timeout_ms=options.number("session.timeout.ms", 45_000, high=_MOST_MS),
        fetch_max_bytes=options.number("fetch.max.bytes", 4 * 1024 * 1024),
        pushdown=options.flag("pushdown", False),
        isolation=options.parsed("isolation.level", _isolation, READ_COMMITTED, "read_committed or read_uncommitted"),
    )
    options.finish()
    return found


def sink_options(given: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
    """The options of a writer. Raises ``OptionsError`` that names everything that is wrong.

    Streams are exactly once unless they say otherwise; other writes are if they have a version.
    """
    options = _Options(given, _SINK)
    chosen = options.parsed("delivery", _delivery, None, "exactly-once or at-least-once")
    # A write without batch ids leaves nobody to end, at once, what a dead driver has left open: its id is made up.
    default = streaming or options.given("transactional.id") or options.given("transaction.version")
    exactly_once = default if chosen is None else chosen
    max_request_bytes = options.number("max.request.size", 4 * 1024 * 1024, 1024, MAX_REQUEST_BYTES)
    found = SinkOptions(
        connection=_connection(options, "request.timeout.ms"),
        topic=options.text("topic"),
        delivery_timeout_ms=options.number("delivery.timeout.ms", 120_000),
        batch_bytes=min(options.number("batch.size", _BATCH_BYTES), max_request_bytes),
        max_request_bytes=max_request_bytes,
        compression=options.parsed(
            "compression.type", _one_of("none", "gzip", "zstd"), "none", "none, gzip or zstd"
        ).replace("none", "")
        or None,  # type: ignore[arg-type]
        exactly_once=exactly_once,
        by_default=exactly_once and chosen is None,
        transactional_id=options.text("transactional.id"),
        version=options.number("transaction.version", None, 0, 2**63 - 1),
        transaction_timeout_ms=options.number("transaction.timeout.ms", 600_000, high=_MOST_MS),
        group_ids=tuple(sorted({name.strip() for name in (options.text("group.id") or "").split(",")} - {""})),
    )
    options.faults += _transaction_faults(options, found, streaming)
    if given.get("asyncProgressTrackingEnabled", given.get("asyncprogresstrackingenabled", "")).lower() == "true":
        options.faults.append(
            "asyncProgressTrackingEnabled is not supported: batches would not be told apart after a crash"
        )
    options.finish()
    return found


def _transaction_faults(options: _Options, found: SinkOptions, streaming: bool) -> list[str]:
    """What is wrong with the options of transactions."""
    if not found.exactly_once:
        names = ("transactional.id", "transaction.version", "transaction.timeout.ms")
        return [f"{name} is for delivery=exactly-once; leave it out" for name in names if options.given(name)]
    faults = []
    if streaming and found.version is not None:
        faults.append("transaction.version is for foreachBatch and batch jobs; a stream has Spark's batch ids")
    if not streaming and found.version is not None and found.transactional_id is None:
        faults.append("transaction.version needs transactional.id, which says whose versions are told apart")
    if not streaming and found.version is None and found.transactional_id is not None:
        faults.append(
            "transactional.id needs transaction.version, such as the batch id of foreachBatch, for each write"
        )
    if not streaming and found.group_ids:
        faults.append("group.id is for streams, whose sources say what a batch reads; leave it out")
    return faults


def duration_s(text: str) -> float:
    """Seconds of ``"500ms"``, ``"30s"``, ``"15m"``, ``"2h"``. Raises ``ValueError`` for anything else."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)(?:in|inutes?|ec|econds?|ours?|ays?)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is no time")
    return int(match[1]) * _SECONDS[match[2]]


def _connection(options: _Options, timeout: str) -> ConnectionOptions:
    servers = options.text("bootstrap.servers") or "127.0.0.1:7337"
    try:
        parse_bootstrap_servers(servers)
    except ValueError as error:
        options.faults.append(f"bootstrap.servers: {error}")
    if options.given("request.timeout.ms"):
        timeout = "request.timeout.ms"
    return ConnectionOptions(servers, options.text("client.id") or "spark", options.number(timeout, 30_000))


def _subscribed(options: _Options) -> Subscribed:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if options.given(name)]
    if len(names) != 1:
        said = "none of them is given" if not names else f"{' and '.join(names)} are given"
        for stray in ("topic", "path") if not names else ():
            if stray in options.others:
                said += f"; {stray} {options.others[stray]!r} names nothing for a source"
        options.faults.append(f"exactly one of subscribe, subscribePattern and assign names what to read; {said}")
        return Subscribed()
    text = options.text(names[0]) or ""
    if names[0] == "subscribe":
        topics = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
        if not topics:
            options.faults.append(f"subscribe is {text!r}, which names no topic")
        return Subscribed(topics=topics)
    if names[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            options.faults.append(f"subscribePattern {text!r} is no regular expression of Python: {error}")
        return Subscribed(pattern=text)
    what = 'JSON such as {"topic": [0, 1]}'
    return Subscribed(partitions=options.parsed("assign", _assigned, (), what))


def _isolation(text: str) -> int:
    if text.lower() not in ISOLATION_LEVELS:
        raise ValueError
    return ISOLATION_LEVELS[text.lower()]


def _delivery(text: str) -> bool:
    if text.lower() not in ("exactly-once", "at-least-once"):
        raise ValueError
    return text.lower() == "exactly-once"


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    given = json.loads(text)
    if not isinstance(given, dict) or not all(isinstance(numbers, list) for numbers in given.values()):
        raise ValueError
    partitions = {TopicPartition(topic, _whole(number)) for topic, numbers in given.items() for number in numbers}
    if not partitions:
        raise ValueError
    return tuple(sorted(partitions))


def _offsets(options: _Options, name: str, default: Where, streaming: bool) -> Start:
    words: Mapping[str, Where] = {"earliest": "earliest", "latest": "latest", "committed": "committed"}

    def parse(text: str) -> Start:
        word = words.get(text.lower())
        if word is not None:
            return word
        offsets = parse_partitions(text, EARLIEST)
        refused = (
            LATEST if not streaming and name == "startingOffsets" else EARLIEST if name == "endingOffsets" else None
        )
        if refused is not None and refused in offsets.values():
            raise ValueError
        return offsets

    what = 'JSON such as {"topic": {"0": 23, "1": -2}}, where -2 is the first offset and -1 the end'
    return options.parsed(name, parse, default, f"earliest, latest, committed or {what}")


def _timestamps(options: _Options, which: str) -> int | Mapping[TopicPartition, int] | None:
    """One time for all partitions goes before a time for each, and both go before offsets."""
    for_all = options.number(f"{which}Timestamp", None, low=0)
    what = 'JSON with milliseconds such as {"topic": {"0": 1700000000000}}'
    each = options.parsed(f"{which}OffsetsByTimestamp", lambda text: parse_partitions(text, 0), None, what)
    return for_all if for_all is not None else each


def parse_partitions(text: str, low: int) -> dict[TopicPartition, int]:
    """A number a partition from JSON as Kafka's source has it; keys with ``$`` are not topics.

    Raises ``ValueError`` when it is anything else, or a number is below ``low``.
    """
    given: Any = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("no JSON object")
    found: dict[TopicPartition, int] = {}
    for topic, partitions in given.items():
        if topic.startswith("$"):
            continue
        if not isinstance(partitions, dict):
            raise ValueError("no JSON object for each topic")
        for partition, number in partitions.items():
            if type(number) is not int or number < low:
                raise ValueError("a number is none, or too low")
            found[TopicPartition(topic, _whole(int(partition)))] = number
    return found


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError("a partition is a number from 0")
    return number


def _one_of(*words: Any) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return parse
