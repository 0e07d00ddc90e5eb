"""What ``cohort log dump`` prints of each kind of file, whole and damaged, as text and as JSON."""

from __future__ import annotations

import io
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.filesystem import reserve
from coordinator.filesystem.files import FileStorage, ReadOnlyStorage
from coordinator.groups.records import encode_record as encode_group_record
from coordinator.inspection.coordinator_records import Contents, contents_of, in_words
from coordinator.inspection.file_dump import UnknownFileError, dump_file
from coordinator.inspection.output import Output, content_text, time_text
from coordinator.inspection.segment_dump import Wanted
from coordinator.log import LogConfig
from coordinator.metadata.authority import KeyValue
from coordinator.metadata.encoding import encode_change, encode_entry
from coordinator.metadata.encoding import encode_snapshot as encode_metadata
from coordinator.nodes import identity, inventory
from coordinator.nodes.cleanliness import NodeRecord
from coordinator.nodes.identity import NodeFile
from coordinator.replication import watermarks
from coordinator.transactions.records import encode_record as encode_transaction_record
from protocol.errors import ProtocolError
from protocol.record_batch import HEADER_BYTES, MAGIC, encode_batch, read_header
from tests.coordinator.groups.test_records import RECORDS as GROUP_RECORDS
from tests.coordinator.log.logs import DIRECTORY, append, opened
from tests.coordinator.log.test_kafka_batches import append_kafka
from tests.coordinator.log.transactional import End, Write, follow, put
from tests.coordinator.transactions.test_records import records as transaction_records
from tests.protocol.kafka.written import CODECS, Record

SEGMENT = "00000000000000000000.log"
SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)


def lines(root: Path, name: str, wanted: Wanted | None = None, contents: Contents | None = None) -> tuple[bool, str]:
    """Whether a file is whole, and what is printed of it."""
    stream = io.StringIO()
    output = Output(stream, as_json=False)
    whole = dump_file(ReadOnlyStorage(root), DIRECTORY, name, output, wanted or Wanted(), contents)
    return whole, stream.getvalue()


def objects(root: Path, name: str, wanted: Wanted | None = None) -> list[dict[str, Any]]:
    """The same as JSON."""
    stream = io.StringIO()
    dump_file(ReadOnlyStorage(root), DIRECTORY, name, Output(stream, as_json=True), wanted or Wanted(), None)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def of_kind(kind: str, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in told if each["kind"] == kind]


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """A log of several segments, ten batches of one to three records."""
    async with opened(FileStorage(tmp_path), SMALL) as log:
        for number in range(10):
            append(log, *((b"key", b"value %d" % number, 1000 * number) for _ in range(number % 3 + 1)))
            await log.wait_committed(log.end_offset)
    return tmp_path


def segments(root: Path) -> list[str]:
    return sorted(path.name for path in (root / DIRECTORY).glob("*.log"))


def test_batches_of_all_segments_follow_one_another(root: Path) -> None:
    assert len(segments(root)) > 2
    batches = [batch for name in segments(root) for batch in of_kind("batch", objects(root, name))]
    assert [batch["records"] for batch in batches] == [number % 3 + 1 for number in range(10)]
    assert [batch["base_offset"] for batch in batches[1:]] == [batch["last_offset"] + 1 for batch in batches[:-1]]
    whole, text = lines(root, SEGMENT)
    assert whole
    assert text.startswith("offset 0  position 0  1 record in ")
    assert "1970-01-01T00:00:00.000Z  leader epoch 0" in text


def test_records_are_shown_when_they_are_asked_for(root: Path) -> None:
    assert not of_kind("record", objects(root, SEGMENT))
    told = of_kind("record", objects(root, SEGMENT, Wanted(values=True)))
    assert told[1] == {
        "kind": "record",
        "offset": 1,
        "timestamp_ms": 1000,
        "key": "key",
        "value": "value 1",
        "headers": [],
    }
    assert '  1  1970-01-01T00:00:01.000Z  key "key"  value "value 1"\n' in lines(root, SEGMENT, Wanted(values=True))[1]


@pytest.mark.parametrize(("first", "until"), [(0, 1), (2, 4), (1, 2), (3, 3), (100, 200)])
def test_a_range_of_offsets_shows_its_records_and_no_other(root: Path, first: int, until: int) -> None:
    found = [
        record["offset"]
        for name in segments(root)
        for record in of_kind("record", objects(root, name, Wanted(first, until, values=True)))
    ]
    assert found == list(range(first, min(until, 19)))


def test_limits_hold(root: Path) -> None:
    assert len(of_kind("batch", objects(root, SEGMENT, Wanted(max_batches=2)))) == 2
    (record, *_) = of_kind("record", objects(root, SEGMENT, Wanted(values=True, value_bytes=4)))
    assert (record["key"], record["value"], record["value_bytes"]) == ("key", "valu", 7)
    assert 'value "valu" and 3 bytes more' in lines(root, SEGMENT, Wanted(values=True, value_bytes=4))[1]


@pytest.mark.parametrize("codec", CODECS)
async def test_batches_of_kafka_clients_are_shown_as_any_other(tmp_path: Path, codec: str) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        append_kafka(log, [Record(b"k", b"kafka's", 7, (("h", b"\xff"),))], (5, 0, 0), codec)
        await log.wait_committed(log.end_offset)
    (batch,) = of_kind("batch", objects(tmp_path, SEGMENT))
    assert batch["attributes"] == ["of a Kafka client"]
    assert batch["compression"] == ("" if codec == "none" else codec)
    text = lines(tmp_path, SEGMENT, Wanted(values=True))[1]
    assert 'key "k"  value "kafka\'s"  headers h=0xff\n' in text
    assert "producer 5 epoch 0 sequence 0" in text


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_compressed_batches_are_inflated(tmp_path: Path, compression: Any) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        batch = encode_batch([b"x" * 1000, None], [None, b"gone"], timestamps_ms=[1, 2], compression=compression)
        log.append(batch, read_header(batch))
        await log.wait_committed(2)
    text = lines(tmp_path, SEGMENT, Wanted(values=True, value_bytes=5))[1]
    assert f"  {compression}  leader epoch 0\n" in text
    assert 'key null  value "xxxxx" and 995 bytes more\n' in text
    assert 'key "gone"  value null\n' in text


def test_end_markers_say_what_became_of_the_transaction(tmp_path: Path) -> None:
    put(FileStorage(tmp_path), follow([Write(7, 2), Write(8, 1), End((7,), True), End((8,), False)]))
    text = lines(tmp_path, SEGMENT)[1]
    assert "  3  end marker: the transaction of producer 7, epoch 0, which began at offset 0, is committed\n" in text
    assert "  4  end marker: the transaction of producer 8, epoch 0, which began at offset 2, is aborted\n" in text


async def test_every_other_file_of_a_log_is_told(root: Path) -> None:
    storage = FileStorage(root)
    async with opened(storage, SMALL) as log:
        batch = encode_batch([b"a"], timestamps_ms=[1], producer_id=9, producer_epoch=2, base_sequence=0)
        log.append(batch, read_header(batch))
        await log.wait_committed(log.end_offset)
    text = {path.name: lines(root, path.name)[1] for path in (root / DIRECTORY).iterdir()}
    index = text[SEGMENT.replace(".log", ".index")]
    assert index.startswith("index of the segment of offsets 0 to ")
    assert "begins at position" in index
    assert "epoch 0 from offset 0 on" in text["leader-epochs"]
    assert "was on disk up to offset 20" in text["checkpoint"]
    assert "producer 9, epoch 2, 1 batch, last sequence 0 at offset 19" in text["clean-end"]
    (snapshot,) = (told for name, told in text.items() if name.endswith(".producers"))
    assert snapshot.endswith(" remembered\n")


async def test_the_index_names_aborted_transactions(tmp_path: Path) -> None:
    put(FileStorage(tmp_path), follow([Write(8, 1), End((8,), False), "roll", Write(-1, 1)]))
    async with opened(FileStorage(tmp_path)):
        pass
    assert (
        "the transaction of producer 8 from offset 0 on was aborted by the end marker at offset 1\n"
        in lines(tmp_path, SEGMENT.replace(".log", ".index"))[1]
    )


def test_damage_is_named_and_what_follows_is_shown(root: Path) -> None:
    path = root / DIRECTORY / SEGMENT
    first, second, *_ = of_kind("batch", objects(root, SEGMENT))
    content = bytearray(path.read_bytes())
    content[second["position"] + HEADER_BYTES + 3] ^= 4
    path.write_bytes(content)
    told = objects(root, SEGMENT)
    assert [each["kind"] for each in told[:2]] == ["batch", "damage"]
    assert told[1]["position"] == second["position"]
    assert told[1]["offset"] == 1
    assert of_kind("segment", told)[0]["damaged_places"] == 1
    content[2] ^= 1  # and the header of the first one: the next whole batch is found
    path.write_bytes(content)
    whole, text = lines(root, SEGMENT)
    assert not whole
    assert text.startswith("position 0, where offset 0 belongs: ")
    assert first["base_offset"] == 0


def test_a_torn_tail_is_no_damage(root: Path) -> None:
    path = root / DIRECTORY / segments(root)[-1]
    path.write_bytes(path.read_bytes() + encode_batch([b"half"], timestamps_ms=[1])[:90])
    whole, text = lines(root, path.name)
    assert whole
    assert "the last 90 bytes are being written, or were when the daemon ended, and were never acknowledged" in text


@pytest.mark.parametrize("name", ["checkpoint", "leader-epochs", "clean-end", SEGMENT.replace(".log", ".index")])
def test_a_flipped_bit_in_a_small_file_is_named(root: Path, name: str) -> None:
    path = root / DIRECTORY / name
    content = bytearray(path.read_bytes())
    place = random.Random(name).randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    whole, text = lines(root, name)
    assert not whole
    assert text.startswith(f"{DIRECTORY}/{name} is damaged: it")


@given(content=st.binary(max_size=300), name=st.sampled_from([SEGMENT, "checkpoint", "0.index", "0.producers", "x"]))
def test_rubbish_is_told_as_rubbish(content: bytes, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("rubbish", numbered=True)
    (root / DIRECTORY).mkdir()
    (root / DIRECTORY / name).write_bytes(b"?" + content if name == "x" else content)
    if name == "x":
        with pytest.raises(UnknownFileError, match="is of a file of a data directory: give a segment"):
            lines(root, name)
    else:
        whole, text = lines(root, name)
        assert whole == (name == SEGMENT and not content)
        assert text


def test_what_is_no_file_of_cohort_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / DIRECTORY
    directory.mkdir()
    for name in ("lock", "reserve", "writable"):
        (directory / name).write_text("mine")
        with pytest.raises(UnknownFileError, match=f"{name} begins with b'mine', as no such file of Cohort does"):
            lines(tmp_path, name)
    os.mkfifo(directory / SEGMENT)
    with pytest.raises(OSError, match="it is no regular file"):
        lines(tmp_path, SEGMENT)
    with pytest.raises(FileNotFoundError):
        lines(tmp_path, "00000000000000000009.log")


TOPIC_ID = "0123456789abcdef" * 2
KEYS = {
    "cluster.format": {"format": 2},
    "controller": {"node": 1, "broker_epoch": 7},
    f"created/{TOPIC_ID}/0000001": {},
    "creating/ab": {"name": "made"},
    "deleting/cd": {"name": "gone", "partitions": 2, "nodes": [0, 1]},
    "imported": {"node": 0},
    "live/1": {
        "directory": "d", "start": "s", "host": "", "port": 7337, "peer_host": "b", "peer_port": 7339, "rack": "",
        "format": 2, "room": 10, "clean_since": 0, "kafka_host": "k", "kafka_port": 9092,
    },
    "next-node-id": {"next": 3},
    "nodes/1": {"directory": "d", "start": "s", "rack": "r1", "first_seen_ms": 0},
    "of a later version": [1],
    f"partitions/{TOPIC_ID}/0000001": {
        "leader": 1, "leader_epoch": 4, "replicas": [0, 1], "isr": [1], "min_isr": -1, "adding": [2],
    },
    "partitions/unknown/0000000": {"leader": -1, "leader_epoch": 4, "replicas": [0], "isr": []},
    "producer-ids": {"first": 0, "next": 1000},
    f"reassignments/{TOPIC_ID}/0000001": {"target": [1, 2]},
    "topics/lines": {"id": TOPIC_ID, "config": {"retention.ms": "5"}},
    "topics/x\x1b[2J": "not as it was",
}  # fmt: skip
TOLD = (
    "logs and metadata are of format 2, which every node has to read",
    "node 1 is the controller, registered with broker epoch 7",
    "lines-1 has a log in this directory",
    "topic made, with the id ab, is being made",
    "topic gone, with the id cd and 2 partitions, is deleted, and logs of it are left on the nodes 0,1",
    "the cluster began with the data directory of node 0",
    "node 1 is registered with broker epoch 3, serves clients at the address that it is reached by, port 7337, Kafka's "
    "clients on port 9092, other nodes at b:7339, and has what was acknowledged since broker epoch 3",
    "the next node without a number gets 3",
    "node 1 has the data directory d, was started last as s, rack r1, and is known since 1970-01-01T00:00:00.000Z",
    "of a later version: [1]",
    "lines-1 is led by node 1 in leader epoch 4, replicas 0,1, in sync 1, acks=all needs a majority in sync, being added 2",
    "partition 0 of the topic with the id unknown has no leader in leader epoch 4, replicas 0, in sync none",
    "producer ids from 1000 on are not given out yet",
    "lines-1 is to have the replicas 1,2",
    f"topic lines has the id {TOPIC_ID} and retention.ms=5",
    'topics/x\\x1b[2J: "not as it was"',
)


def of_node(root: Path, name: str, content: bytes) -> tuple[bool, list[str]]:
    """What is printed of a file of a data directory."""
    (root / DIRECTORY).mkdir(exist_ok=True)
    (root / DIRECTORY / name).write_bytes(content)
    whole, text = lines(root, name)
    return whole, text.splitlines()


def entries(lease: int = 0) -> list[KeyValue]:
    return [KeyValue(key, value, 3, 5, 2, lease) for key, value in KEYS.items()]


@pytest.mark.parametrize("name", ["metadata.json", "metadata.json.imported"])
def test_each_key_of_the_metadata_is_told_in_words(tmp_path: Path, name: str) -> None:
    whole, told = of_node(tmp_path, name, encode_metadata("c-1", 5, map(encode_entry, entries())))
    assert whole
    assert told == [
        "metadata of the cluster c-1 at revision 5, 16 keys; format 3",
        *(f"  {text}  (revision 5)" for text in TOLD),
    ]
    first, *_, last = objects(tmp_path, name)
    assert (first["kind"], first["cluster_id"], last["kind"]) == ("metadata", "c-1", "key")
    assert (last["key"], last["value"], last["mod_revision"]) == ("topics/x\x1b[2J", "not as it was", 5)


def test_each_change_of_the_metadata_is_told_in_words(tmp_path: Path) -> None:
    keys = {entry.key: encode_entry(entry) for entry in entries(lease=9)}
    first = encode_change(5, keys)
    gone = encode_change(6, {f"partitions/{TOPIC_ID}/0000001": None, "topics/x\x1b": None})
    whole, told = of_node(tmp_path, "metadata.changes", first + gone + gone[:20])
    assert whole
    assert told == [
        "position 0  revision 5: 16 keys",
        *(f"  {text}  (revision 5; under the lease 9)" for text in TOLD),
        f"position {len(first)}  revision 6: 2 keys",
        "  the key in partitions of lines-1 is removed",
        "  the key topics/x\\x1b is removed",
        "2 changes since the snapshot in metadata.json, or before it; the last 20 bytes were being written when the daemon "
        "ended",
    ]
    whole, told = of_node(tmp_path, "metadata.changes", first[:50] + b"?" + first[51:] + gone)
    assert not whole
    assert told == [
        f"{DIRECTORY}/metadata.changes: metadata.changes is damaged at position 0: a line does not match its checksum, and "
        "is not one that was being written when the machine stopped; restore metadata.json and metadata.changes from a "
        "backup"
    ]


def test_the_files_of_a_node_are_told_in_words(tmp_path: Path) -> None:
    node = NodeFile("dir", "c-1", 3, 17, "os", NodeRecord(("a", "b"), 12, "boot", False))
    assert of_node(tmp_path, "node.json", identity.encode(node)) == (
        True,
        [
            "node 3 of the cluster c-1, data directory dir; it was registered last with broker epoch 17 and runs, or has "
            "not been stopped cleanly; it has all that it acknowledged since broker epoch 12; what it acknowledges may be "
            "in the machine's memory (flush=os); its last starts are a, b, of the machine's boot boot"
        ],
    )
    assert objects(tmp_path, "node.json")[0]["starts"] == ["a", "b"]
    new = NodeFile("dir", "c-1", 3, 0, "ack", NodeRecord((), 0, "", True))
    (text,) = of_node(tmp_path, "node.json", identity.encode(new))[1]
    assert (
        "it was never registered and was stopped cleanly; it has all that it acknowledged since the start that" in text
    )
    assert of_node(tmp_path, "inventory", inventory.encode([("t1", 1), ("t1", 0), ("t2", 0)]))[1] == [
        "3 logs in this data directory",
        "  of the topic with the id t1: 0,1",
        "  of the topic with the id t2: 0",
    ]
    hints = {("t1", 0): watermarks.Hint(7, 0), ("t1", 1): watermarks.Hint(8)}
    assert of_node(tmp_path, "high-watermarks", watermarks.encode(hints))[1] == [
        "hints at the high watermarks of 2 replicas, which may have grown since",
        "  partition 0 of the topic with the id t1: 7; it had all that was committed at 1970-01-01T00:00:00.000Z",
        "  partition 1 of the topic with the id t1: 8; it had all that was committed at -",
    ]
    assert of_node(tmp_path, "lock", b"417\n")[1] == ["process 417 uses the data directory, or was the last that did"]
    assert of_node(tmp_path, "lock", b"")[1] == ["no process has used the data directory yet"]
    assert of_node(tmp_path, "reserve", reserve.content(2048))[1] == ["2.0 KiB that deletions may use on a full disk"]
    assert of_node(tmp_path, "writable", b"")[1][0].startswith("empty: it is written to see whether")


@pytest.mark.parametrize("name", ["metadata.json", "node.json", "inventory", "high-watermarks"])
@given(content=st.binary(max_size=80) | st.just(b"[" * 100_000) | st.just(b'{"format": 1}\n{}'))
@example(content=MAGIC)
def test_rubbish_in_the_files_of_a_node_is_told_as_rubbish(
    name: str, content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("rubbish", numbered=True)
    whole, told = of_node(root, name, content)
    assert not whole
    assert told[0].startswith(f"{DIRECTORY}/{name}: {name} ")


async def test_terminals_obey_nothing_of_a_record(tmp_path: Path) -> None:
    async with opened(FileStorage(tmp_path)) as log:
        append(log, (b"\x1b[2J", b"\x9b31m\x07", 0))
        await log.wait_committed(1)
    assert "\x1b" not in lines(tmp_path, SEGMENT, Wanted(values=True))[1]


@given(record=GROUP_RECORDS)
def test_each_record_of_groups_is_told_in_words(record: Any) -> None:
    sentence, fields = in_words("groups", *encode_group_record(record))
    assert sentence.startswith("group ")
    assert json.loads(json.dumps(fields))["type"] == type(record).__name__


@given(record=transaction_records)
def test_each_record_of_transactions_is_told_in_words(record: Any) -> None:
    sentence, fields = in_words("transactions", *encode_transaction_record(record))
    assert sentence.startswith("transactional id ")
    assert json.loads(json.dumps(fields))["type"] == type(record).__name__


@given(key=st.none() | st.binary(max_size=40), value=st.none() | st.binary(max_size=40))
def test_what_is_no_record_of_a_coordinator_is_refused(key: bytes | None, value: bytes | None) -> None:
    for contents in ("groups", "transactions"):
        try:
            sentence, _ = in_words(contents, key, value)
        except ProtocolError:
            continue
        assert sentence


async def test_a_log_of_groups_is_known_by_its_directory_or_by_request(root: Path) -> None:
    assert [contents_of(name) for name in ("__consumer_offsets-3", "__transaction_state-0", "a-1")] == [
        "groups",
        "transactions",
        "records",
    ]
    whole, text = lines(root, SEGMENT, contents="groups")
    assert not whole
    assert "the records of the batch at offset 0 do not decode" in text


@pytest.mark.parametrize(
    ("content", "limit", "text"),
    [
        (None, 9, "null"),
        (b"", 9, '""'),
        ("süß".encode(), 0, '"süß"'),
        ("süß".encode(), 2, '"s" and 4 bytes more'),
        (b"\xff\x00", 9, "0xff00"),
        (b"\xffabcdefgh", 6, "0xff6162636465 and 3 bytes more"),
        (b'a"\n', 9, '"a\\"\\n"'),
    ],
)
def test_content_is_text_or_digits(content: bytes | None, limit: int, text: str) -> None:
    assert content_text(content, limit) == text


def test_times_that_no_calendar_has_are_numbers() -> None:
    assert time_text(-1) == "-"
    assert time_text(2**62) == f"{2**62} ms"
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
