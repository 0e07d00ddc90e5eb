"""Settings of the daemon: defaults, a TOML file, the environment, the command line; later ones win.

Every setting is a field of ``Settings``; its name is the TOML key, ``COHORT_`` and the name in capitals is the environment
variable, and ``--`` and the name with dashes is the option.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal

from coordinator.metadata import urls
from coordinator.metadata.partitions import MAJORITY
from coordinator.metadata.topic_config import TOPIC_SETTINGS, Value
from protocol.framing import MAX_BATCH_IN_FRAME, MAX_RECORDS_IN_FRAME

ENVIRONMENT_PREFIX: Final = "COHORT_"
CLIENT_VARIABLES: Final = frozenset({"COHORT_BOOTSTRAP"})
"""Variables of the same prefix that belong to the client tool."""
_OTHER_FILES: Final = 192
"""Descriptors for everything but partitions of topics and connections: coordinators' logs, segments being read, sockets."""
_FEWEST_FILES: Final = _OTHER_FILES + 32
"""With fewer a daemon would start and serve a client or two, and fail with errors that do not name the cause."""
_AROUND_RECORDS: Final = 1024
"""Bytes of a produce request beside its batch: the names of topic and client, and numbers."""


class ConfigurationError(Exception):
    """A setting that is unknown or has a value it cannot have; the text names it and says what is right."""


def _setting(default: Any, doc: str, low: int | None = None, high: int | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a daemon can be told. Construct with keywords; ``check`` raises ``ConfigurationError`` for absurd values."""

    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(7337, "port to listen on; 0 picks a free one", 0, 65535)
    data_dir: str = _setting("cohort-data", "directory that holds all logs; one daemon at a time")
    log_format: Literal["console", "json"] = _setting("console", "how log lines look")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "least severe level that is logged")
    flush: Literal["ack", "os"] = _setting(
        "ack", "ack: fdatasync before every acknowledgement; os: leave it to the kernel, a power cut may lose records"
    )

    workers: int = _setting(
        1,
        "processes that share the work, each a node of one cluster on this machine; their ports count up from port",
        1,
        64,
    )

    advertised_host: str = _setting("", "host that clients are told; empty: the address they connected to")
    advertised_port: int = _setting(0, "port that clients are told; 0: the port they connected to", 0, 65535)
    node_id: int = _setting(
        -1,
        "number of this node in the metadata; -1: drawn once from the metadata store and kept in the data directory, 0 with "
        "metadata=local",
        -1,
        2**31 - 1,
    )

    metadata: str = _setting(
        "local",
        "where the cluster's metadata is: local (one node), etcd://HOST:PORT,HOST:PORT/NAME, etcds:// with TLS, or "
        "cohort://HOST:PORT/NAME (the store that another node serves)",
    )
    metadata_ca: str = _setting("", "file with the authorities for etcd's certificates; empty: the system's")
    metadata_cert: str = _setting("", "file with this node's certificate for etcd")
    metadata_key: str = _setting("", "file with the key of metadata_cert")
    metadata_user: str = _setting("", "user of etcd")
    metadata_password_file: str = _setting("", "file with the password of metadata_user")
    allow_old_etcd: Literal["no", "yes"] = _setting(
        "no", "yes: an etcd older than 3.5.18 is used too, which may lose events of a watch, leases or data"
    )
    serve_metadata: str = _setting(
        "",
        "HOST:PORT where this node offers its local metadata to other nodes, for trying out: it is on this disk only",
    )
    import_metadata: Literal["no", "yes"] = _setting(
        "no", "yes: the data directory of a single node becomes the first node of the cluster that metadata names"
    )
    rack: str = _setting(
        "", "where this node stands: replicas of a partition go to different racks while there are enough"
    )
    peer_host: str = _setting("", "address to listen on for other nodes; empty: host")
    peer_port: int = _setting(
        0, "port to listen on for other nodes; 0 picks a free one, as it is in the metadata", 0, 65535
    )
    node_session_ms: int = _setting(
        6_000, "how long a node that is not heard of keeps what it leads, in ms", 2_000, 600_000
    )
    default_replication_factor: int = _setting(1, "replicas of topics that are created without a number", 1, 7)
    offsets_replication_factor: int = _setting(
        3,
        "replicas of __consumer_offsets and __transaction_state in a cluster; they are made when so many nodes are there",
        1,
        7,
    )
    replica_lag_time_max_ms: int = _setting(
        10_000, "a follower that has not had all records for so long leaves the in-sync replicas, in ms", 100, 2**31 - 1
    )
    replica_fetch_max_bytes: int = _setting(
        8 * 1024 * 1024, "most bytes of records in one answer to a follower", 1024, MAX_RECORDS_IN_FRAME
    )
    replica_fetch_wait_max_ms: int = _setting(500, "how long a follower's fetch waits for records, in ms", 1, 60_000)
    replication_throttle_bytes_per_s: int = _setting(
        -1, "bound of what replicas copy that are not in sync, in bytes a second; -1: none", -1, 2**53
    )
    controlled_shutdown_ms: int = _setting(
        30_000, "how long a stop hands over what the node leads, in ms", 0, 3_600_000
    )
    leader_rebalance: Literal["yes", "no"] = _setting(
        "yes", "whether partitions go back to their first replica when it is in sync again"
    )
    serve_without_quorum: Literal["no", "yes"] = _setting(
        "no",
        "yes: a leader that cannot reach the metadata store goes on with acks=1 and reads, at the risk of two leaders",
    )

    kafka_port: int = _setting(
        0, "port for Kafka's clients, which needs aiocohort[kafka]; 0: none, -1 picks a free one", -1, 65535
    )
    kafka_host: str = _setting("", "address to listen on for Kafka's clients; empty: host")
    kafka_advertised_host: str = _setting(
        "", "host that Kafka's clients are told; empty: advertised_host, or else the address they connected to"
    )
    kafka_advertised_port: int = _setting(
        0, "port that Kafka's clients are told; 0: the port they connected to", 0, 65535
    )
    kafka_auto_create_topics: Literal["yes", "no"] = _setting(
        "yes", "whether a topic is created, with default_partitions, when a Kafka client asks for it and lets it be"
    )
    kafka_min_session_timeout_ms: int = _setting(
        6_000, "shortest session a member may ask for that is a Kafka client, in ms", 1, 3_600_000
    )
    kafka_heartbeat_hold_ms: int = _setting(
        2_500,
        "how long a Kafka client's heartbeat is held, at most a third of its session, so that its answer can bring the news "
        "of a rebalance, in ms; 0: it is answered at once, and the client hears of a rebalance at its next one",
        0,
        60_000,
    )

    http: str = _setting(
        "",
        "HOST:PORT of an HTTP server with a page for people, /metrics, /healthz and /readyz, which needs aiocohort[web]; "
        "port 0 picks a free one; empty: none",
    )
    http_admin: Literal["no", "yes"] = _setting(
        "no", "yes: the page at http may change offsets of groups, for all who reach it"
    )
    http_hosts: str = _setting(
        "",
        "names, with commas between them, by which browsers reach the page beside addresses, localhost, advertised_host and "
        "the host of http",
    )
    metrics_max_series: int = _setting(
        10_000,
        "most series of one metric by group, topic or partition; those that come first by name are shown, and "
        "cohort_metrics_left_out counts the others",
        0,
        10_000_000,
    )

    max_connections: int = _setting(10_000, "connections at once; one more is closed at once", 1, 1_000_000)
    max_frame_bytes: int = _setting(
        32 * 1024 * 1024, "largest request in bytes; it bounds what one connection can hold", 1024, 2**31 - 1
    )
    max_in_flight: int = _setting(
        256, "requests of one connection under way at once; above it the connection is not read", 1, 65536
    )
    max_request_memory_bytes: int = _setting(
        256 * 1024 * 1024,
        "bytes of requests under way or queued for the disk, all connections together; above it none is read. Requests that "
        "have not arrived in full may hold as much again, above which the connection that holds most is closed; answers "
        "that are not read yet as well, and the nearer it is, the smaller are those with records",
        1024,
        2**40,
    )
    frame_timeout_ms: int = _setting(
        60_000, "a request that has begun to arrive must be complete after this time, in ms", 100, 3_600_000
    )
    max_idle_ms: int = _setting(
        600_000, "a connection on which nothing is asked is closed after this time, in ms", 100, 2**31 - 1
    )
    disk_threads: int = _setting(4, "threads for writes and syncs; as many again for reads, and for maintenance", 1, 64)
    drain_timeout_ms: int = _setting(10_000, "how long a stop waits for answers to be sent, in ms", 0, 600_000)

    default_partitions: int = _setting(1, "partitions of a topic created without a number", 1, 10_000)
    max_partitions_per_topic: int = _setting(10_000, "partitions one topic may have", 1, 1_000_000)
    max_partitions: int = _setting(
        10_000, "partitions all topics together may have; each keeps a file open", 1, 1_000_000
    )
    segment_bytes: int = _setting(64 * 1024 * 1024, "bytes after which a log begins a new segment", 1024, 2**31 - 1)
    max_message_bytes: int = _setting(
        1_048_588, "largest record batch in bytes; topics can override it", 128, MAX_BATCH_IN_FRAME
    )
    retention_ms: int = _setting(
        604_800_000,
        "records older than this are deleted, segment by segment, in ms; -1 keeps them; topics can override it",
        -1,
        2**63 - 1,
    )
    retention_bytes: int = _setting(
        -1,
        "oldest segments of a partition are deleted while the others have this many bytes; -1 keeps them; topics can "
        "override it",
        -1,
        2**63 - 1,
    )
    segment_ms: int = _setting(
        604_800_000,
        "a segment takes no more records this long after its first, in ms; topics can override it",
        1,
        2**63 - 1,
    )
    retention_check_interval_ms: int = _setting(
        300_000, "pause between two looks for segments and producers that have expired, in ms", 10, 2**31 - 1
    )
    cleanup_policy: Literal["delete", "compact", "compact,delete"] = _setting(
        "delete", "whether old records are deleted, superseded ones compacted away, or both; topics can override it"
    )
    min_cleanable_dirty_ratio: float = _setting(
        0.5, "compaction begins when more than this share of a log is not compacted; topics can override it", 0, 1
    )
    delete_retention_ms: int = _setting(
        86_400_000, "how long compaction keeps a tombstone, in ms; topics can override it", 0, 2**63 - 1
    )
    min_compaction_lag_ms: int = _setting(
        0, "compaction leaves records alone that are younger than this, in ms; topics can override it", 0, 2**63 - 1
    )
    max_compaction_lag_ms: int = _setting(
        2**63 - 1,
        "compaction waits for the dirty share no longer than this, in ms; topics can override it",
        1,
        2**63 - 1,
    )
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = _setting(
        "CreateTime", "whose clock gives records their time, the producer's or this daemon's; topics can override it"
    )
    min_insync_replicas: int = _setting(
        MAJORITY,
        "replicas that must be in sync for a write with acks=all, -1: a majority of them from 3 on, else 1; topics can "
        "override it",
        MAJORITY,
        2**31 - 1,
    )
    producer_id_expiration_ms: int = _setting(
        86_400_000,
        "how long a partition remembers an idempotent producer that writes nothing, in ms",
        1,
        2**63 - 1,
    )
    max_fetch_wait_ms: int = _setting(60_000, "longest time a long poll is held, in ms", 0, 3_600_000)
    max_fetch_bytes: int = _setting(32 * 1024 * 1024, "most bytes of records in one answer", 1024, MAX_RECORDS_IN_FRAME)

    offsets_segment_bytes: int = _setting(
        16 * 1024 * 1024,
        "segment size of __consumer_offsets; smaller segments let compaction begin earlier",
        1024,
        2**31 - 1,
    )
    checkpoint_interval_ms: int = _setting(
        60_000,
        "pause between two looks for logs that have grown, whose end is written down then: a file that ends earlier after a "
        "crash is refused as damaged, in ms",
        10,
        86_400_000,
    )
    compaction_interval_ms: int = _setting(15_000, "pause between two looks for logs to compact, in ms", 10, 86_400_000)
    min_session_timeout_ms: int = _setting(100, "shortest session a member may ask for, in ms", 1, 3_600_000)
    max_session_timeout_ms: int = _setting(1_800_000, "longest session a member may ask for, in ms", 1, 2**31 - 1)
    initial_rebalance_delay_ms: int = _setting(
        0,
        "how long the first generation of an empty group waits for more members, in ms; 0 as a generation takes "
        "milliseconds, more where many members start at once and a rebalance costs them much",
        0,
        3_600_000,
    )
    group_max_size: int = _setting(50_000, "members one group may have", 1, 1_000_000)
    offset_metadata_max_bytes: int = _setting(
        4096, "longest text committed with an offset, in bytes of UTF-8", 0, 32767
    )
    offsets_retention_ms: int = _setting(
        604_800_000,
        "how long committed offsets are kept once their group is empty or reads the topic no more, in ms",
        1,
        2**53,
    )
    offsets_retention_check_interval_ms: int = _setting(
        600_000, "pause between two looks for offsets that have expired, in ms", 10, 2**31 - 1
    )
    transaction_max_timeout_ms: int = _setting(
        900_000, "longest time a transaction may ask to be open, in ms; then it is aborted", 1, 2**31 - 1
    )
    max_transactional_ids: int = _setting(
        100_000, "transactional ids the daemon keeps; one more is refused", 1, 10_000_000
    )
    transactional_id_expiration_ms: int = _setting(
        604_800_000, "how long a transactional id is kept that no transaction uses, in ms", 1, 2**53
    )
    transactions_segment_bytes: int = _setting(
        16 * 1024 * 1024,
        "segment size of __transaction_state; smaller segments let compaction begin earlier",
        1024,
        2**31 - 1,
    )

    @property
    def topic_defaults(self) -> dict[str, Value]:
        """What holds for topics that say nothing, by the names that topics know."""
        return {name: getattr(self, name.replace(".", "_")) for name in TOPIC_SETTINGS}

    def check(self) -> Settings:
        """This object, after a look at every value. Raises ``ConfigurationError`` naming the first wrong one."""
        hints = typing.get_type_hints(Settings)
        for spec in dataclasses.fields(self):
            _check_value(spec, getattr(self, spec.name), hints[spec.name])
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigurationError("min_compaction_lag_ms is above max_compaction_lag_ms")
        if self.max_frame_bytes < self.max_message_bytes + _AROUND_RECORDS:
            raise ConfigurationError(
                f"max_frame_bytes is {self.max_frame_bytes}, too small for a request with a batch of max_message_bytes "
                f"({self.max_message_bytes}): it must be at least {self.max_message_bytes + _AROUND_RECORDS}, or "
                "max_message_bytes smaller"
            )
        if self.min_insync_replicas == 0:
            raise ConfigurationError(
                "min_insync_replicas is 0; it must be 1 or more, or -1: a majority of the replicas"
            )
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            raise ConfigurationError("min_session_timeout_ms is above max_session_timeout_ms")
        self._check_cluster()
        return self

    @property
    def is_standalone(self) -> bool:
        """Whether this node is alone and stays so: its metadata is its own, and it serves them to no other."""
        return self.metadata == "local" and not self.serve_metadata and self.workers == 1

    def told_to_kafka(self, address: tuple[str, int]) -> tuple[str, int]:
        """Host and port that Kafka's clients are told; those of ``address`` where the settings say nothing."""
        host = self.kafka_advertised_host or self.advertised_host or address[0]
        return host, self.kafka_advertised_port or address[1]

    def _check_cluster(self) -> None:
        for name, kind in (("metadata", urls.parse), ("serve_metadata", urls.address), ("http", urls.address)):
            if (value := getattr(self, name)) not in ("local", ""):
                try:
                    kind(value)
                except urls.MetadataUrlError as error:
                    also = "; it can also be 'local'" if name == "metadata" else ""
                    raise ConfigurationError(f"{name}: {error}{also}") from error
        if not self.metadata:
            raise ConfigurationError("metadata is ''; it can be 'local' or a URL, such as etcd://HOST:PORT/NAME")
        if self.serve_metadata and self.metadata != "local":
            raise ConfigurationError(f"serve_metadata offers the local store, and metadata is {self.metadata!r}")
        if self.import_metadata == "yes" and self.workers > 1:
            raise ConfigurationError(
                "import_metadata is for a node that joins a cluster, and workers are one of their own"
            )
        if (
            not self.is_standalone
            and self.kafka_port
            and not (self.kafka_advertised_host or self.advertised_host)
            and self.kafka_host in ("0.0.0.0", "::")
        ):
            raise ConfigurationError(
                f"kafka_host is {self.kafka_host!r}, and other nodes tell clients where this one is: set "
                "kafka_advertised_host to a name or address that clients reach"
            )
        if not self.is_standalone and not self.advertised_host and self.host in ("0.0.0.0", "::", ""):
            raise ConfigurationError(
                f"host is {self.host!r}, and other nodes tell clients where this one is: set advertised_host to a name or "
                "address that clients reach"
            )


_FIELDS: Final = {spec.name: spec for spec in dataclasses.fields(Settings)}
_HINTS: Final = typing.get_type_hints(Settings)


def _check_value(spec: dataclasses.Field[Any], value: Any, hint: Any) -> None:
    choices = typing.get_args(hint)
    if choices:
        if value not in choices:
            raise ConfigurationError(f"{spec.name} is {value!r}; it can be {' or '.join(map(repr, choices))}")
    elif type(value) is not hint and not (hint is float and type(value) is int):
        raise ConfigurationError(f"{spec.name} is {value!r}; it must be of type {hint.__name__}")
    elif hint is int or hint is float:
        low, high = spec.metadata["low"], spec.metadata["high"]
        if not low <= value <= high:
            raise ConfigurationError(f"{spec.name} is {value}; it must be from {low} to {high}")


def _known(name: str, where: str) -> str:
    if name in _FIELDS:
        return name
    nearest = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(_FIELDS)}"
    raise ConfigurationError(f"{where} has an unknown setting {name!r}; {hint}")


def settings_from(values: Mapping[str, Any], where: str = "the call") -> Settings:
    """Settings from keywords. Raises ``ConfigurationError`` for unknown names, suggesting the nearest, and wrong values."""
    return Settings(**{_known(name, where): value for name, value in values.items()}).check()


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file. Raises ``ConfigurationError`` when it cannot be read or names an unknown setting."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the configuration file cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no valid TOML: {error}") from error
    return {_known(name, str(path)): value for name, value in content.items()}


def read_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The settings in ``COHORT_...`` variables, and warnings about variables of that prefix that name no setting."""
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in CLIENT_VARIABLES:
            continue
        try:
            name = _known(variable[len(ENVIRONMENT_PREFIX) :].lower(), "the environment")
        except ConfigurationError as error:
            warnings.append(f"{variable} is ignored: {error}")
            continue
        values[name] = _from_text(name, text, variable)
    return values, warnings


def _from_text(name: str, text: str, where: str) -> Any:
    kind = _HINTS[name]
    if kind is not int and kind is not float:
        return text
    try:
        if not text.isascii() or "_" in text:
            raise ValueError("int() and float() take digits of any script, and underscores")
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ConfigurationError(f"{where} is {text!r}; {name} must be {what}") from None


def fit_open_files(settings: Settings, open_files: int) -> tuple[Settings, str]:
    """Settings under which ``open_files`` descriptors are enough, and a line for the log if that makes them smaller.

    Each partition and each connection holds one. A daemon that ran out of them could neither answer a new client nor close
    a segment, so both are bounded beforehand. Raises ``ConfigurationError`` when there are too few for any daemon.
    """
    if open_files < _FEWEST_FILES:
        raise ConfigurationError(
            f"only {open_files} files may be open, and a daemon needs {_FEWEST_FILES} at least, and one for each partition "
            "and connection: raise the limit (ulimit -n 65536, LimitNOFILE)"
        )
    wanted = settings.max_partitions + settings.max_connections
    left = max(2, open_files - _OTHER_FILES)
    if wanted <= left:
        return settings, ""
    partitions = max(1, left * settings.max_partitions // wanted)
    connections = max(1, left - partitions)
    fitted = dataclasses.replace(settings, max_partitions=partitions, max_connections=connections)
    return fitted, (
        f"{open_files} files may be open: max_partitions is lowered from {settings.max_partitions} to {partitions}, "
        f"max_connections from {settings.max_connections} to {connections}; raise the hard limit of open files to "
        f"{wanted + _OTHER_FILES} for more (ulimit -Hn, LimitNOFILE)"
    )


def parser() -> argparse.ArgumentParser:
    """The command line of ``cohortd``; every setting is an option."""
    command = argparse.ArgumentParser(
        prog="cohortd",
        usage="cohortd [--config FILE.toml] [--OPTION VALUE ...]; cohortd --help lists the options",
        allow_abbrev=False,
        description="Cohort's coordinator daemon: consumer groups, offsets and partition logs.",
        epilog="Every option is also a TOML key (segment_bytes = 1048576) and a variable (COHORT_SEGMENT_BYTES).",
    )
    command.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    command.add_argument("--config", metavar="FILE.toml", help="read settings from this file")
    for name, spec in _FIELDS.items():
        choices = typing.get_args(_HINTS[name]) or None
        default = spec.default if spec.default != "" else "none"
        command.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            choices=choices,
            metavar=None if choices else name.rsplit("_", 1)[-1].upper(),
            help=f"{spec.metadata['doc']} (default {default})",
        )
    return command


class _Version(argparse.Action):
    """The version is looked up when it is asked for: reading an installation's metadata takes a moment."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> typing.NoReturn:
        print(f"cohortd {version('aiocohort')}")
        parser.exit()


def _unknown_option(argument: str) -> str:
    if not argument.startswith("-"):
        return f"{argument!r} is no option; every setting is given as --name value"
    option = argument.partition("=")[0]
    name = option.lstrip("-").replace("-", "_")
    options = ["config", *_FIELDS]
    nearest = [known for known in options if name and known.startswith(name)]
    nearest = nearest or difflib.get_close_matches(name, options, n=1, cutoff=0.4)
    hint = f"did you mean --{nearest[0].replace('_', '-')}?" if nearest else "cohortd --help lists them"
    return f"unknown option {option}; {hint}"


def load_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """Settings from all four sources, and warnings for the log.

    Raises ``ConfigurationError``, or ``SystemExit`` with status 2 from argparse for an unknown option.
    """
    command = parser()
    known, unknown = command.parse_known_args(arguments)
    if unknown:
        command.error(_unknown_option(unknown[0]))
    options = vars(known)
    config = options.pop("config") or environment.get("COHORT_CONFIG")
    values = read_toml(Path(config)) if config else {}
    from_environment, warnings = read_environment(
        {name: text for name, text in environment.items() if name != "COHORT_CONFIG"}
    )
    values |= from_environment
    for name, text in options.items():
        if text is not None:
            values[name] = _from_text(name, text, f"--{name.replace('_', '-')}")
    return settings_from(values), warnings
