"""``cohort check``: every flipped bit is found, what a crash leaves is none, and what the daemon refuses is told."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.filesystem.files import FileStorage, ReadOnlyStorage
from coordinator.inspection.data_directory import DirectoryCheck
from coordinator.inspection.findings import MAX_OF_A_FILE, Finding, Report, Tally
from coordinator.inspection.output import Output, Progress
from coordinator.inspection.partition_check import Depth, PartitionCheck
from coordinator.inspection.roots import NotADataDirectoryError, roots_in
from coordinator.log import LogConfig, LogDamagedError
from coordinator.log.checkpoints import write_cleaner_point
from coordinator.log.index import SparseIndex
from coordinator.log.producer_snapshots import write_snapshot
from coordinator.log.recovery import open_directory
from coordinator.log.segment import swap_name
from coordinator.metadata.authority import KeyValue
from coordinator.metadata.encoding import encode_change, encode_entry
from coordinator.metadata.encoding import encode_snapshot as encode_metadata
from coordinator.nodes import identity
from coordinator.nodes.cleanliness import NodeRecord
from protocol.control_batch import TransactionEnd, encode_control_batch
from protocol.kafka.batch import read_batch_header
from protocol.record_batch import (
    HEADER_BYTES,
    Attributes,
    batch_around,
    encode_batch,
    iter_batches,
    read_header,
    restamped,
)
from tests.coordinator.log.logs import DIRECTORY, append, batch_of, opened
from tests.coordinator.log.test_compaction_transactions import CONFIG as COMPACTED
from tests.coordinator.log.test_compaction_transactions import DECIDED_LATER, SUPERSEDED_BY_AN_ABORT
from tests.coordinator.log.test_kafka_batches import append_kafka
from tests.coordinator.log.test_reading_committed import STEPS
from tests.coordinator.log.transactional import End, Write, follow, put
from tests.protocol.kafka.written import CODECS, Record, written

SMALL = LogConfig(segment_bytes=900, index_interval_bytes=150)
RECORDS = Depth(records=True)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def looked_at(root: Path, depth: Depth = RECORDS) -> list[Finding]:
    """What a check of the log finds."""
    return tallied(root, depth)[0]


def tallied(root: Path, depth: Depth) -> tuple[list[Finding], Tally]:
    tally = Tally()
    check = PartitionCheck(ReadOnlyStorage(root), DIRECTORY, tally, Progress(io.StringIO(), 0), depth)
    check.run()
    return check.findings, tally


def damage(root: Path, depth: Depth = RECORDS) -> list[Finding]:
    return [found for found in looked_at(root, depth) if found.damage]


async def filled(root: Path, *, close: bool = True) -> None:
    """A log with everything in it: columns, compressions, bodies of Kafka, an idempotent producer."""
    async with opened(FileStorage(root), SMALL, close=close) as log:
        for number in range(30):
            append(log, *((b"key %d" % (number % 4), b"v" * (number * 7 % 90), number) for _ in range(number % 3 + 1)))
            if number % 5 == 0:
                append_kafka(
                    log, [Record(b"k", b"kafka's", number)] * 3, (5, 0, number // 5 * 3), CODECS[number // 5 % 5]
                )
            if number % 4 == 0:
                batch = encode_batch(
                    [b"x" * 200], timestamps_ms=[number], compression=("gzip", "zstd")[number // 4 % 2]
                )
                log.append(batch, read_header(batch))
            await log.wait_committed(log.end_offset)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    with structlog.testing.capture_logs():
        asyncio.run(filled(root))
    return root


def copied(whole: Path, root: Path) -> Path:
    shutil.copytree(whole, root, dirs_exist_ok=True)
    return root / DIRECTORY


def segments(root: Path) -> list[Path]:
    return sorted((root / DIRECTORY).glob("*.log"))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def opens(root: Path) -> bool:
    """Whether the daemon takes the log, of which it may mend something."""
    try:
        segment = open_directory(FileStorage(root), DIRECTORY, SMALL).segments[-1]
    except LogDamagedError:
        return False
    segment.retire()
    return True


def test_a_log_that_was_closed_is_whole(whole: Path) -> None:
    found, tally = tallied(whole, Depth(records=True))
    assert not found
    assert (tally.partitions, tally.segments) == (1, len(segments(whole)))
    assert tally.segments > 5
    headers = [header for path in segments(whole) for _, header in iter_batches(path.read_bytes())]
    assert tally.batches == len(headers)
    assert tally.records == sum(header.record_count for header in headers)
    assert tally.size == sum(path.stat().st_size for path in segments(whole))


async def test_a_log_that_was_killed_is_whole(tmp_path: Path) -> None:
    await filled(tmp_path, close=False)
    assert not looked_at(tmp_path)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_flipped_bit_of_a_closed_segment_is_found(
    whole: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = data.draw(st.sampled_from(segments(whole)[:-1]), label="segment")
    place = data.draw(st.integers(0, 8 * path.stat().st_size - 1), label="bit")
    flip(path, place)
    try:
        found = damage(whole, Depth())
    finally:
        flip(path, place)
    assert [each.file for each in found] == [path.name]
    assert found[0].position is not None
    assert found[0].position <= place // 8
    assert "cohort topics delete-records orders --partition 0 --before " in found[0].advice


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_the_daemon_refuses_is_damage_and_what_is_not_told_does_not_hurt(
    whole: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bits are flipped, and files cut or removed, anywhere in the directory."""
    root = tmp_path_factory.mktemp("hurt")
    directory = copied(whole, root)
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(sorted(path for path in directory.iterdir() if path.stat().st_size)))
        hurt = data.draw(st.sampled_from(["flip", "cut", "remove"]))
        if hurt == "flip":
            flip(path, data.draw(st.integers(0, 8 * path.stat().st_size - 1)))
        elif hurt == "cut":
            path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, path.stat().st_size - 1))])
        else:
            path.unlink()
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    found = looked_at(root)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before, "a check changes nothing"
    if any(each.damage for each in found):
        assert all(each.advice for each in found if each.damage)
    else:
        assert opens(root)
        assert not damage(root), "it is whole also when the daemon has mended what it mends"
    shutil.rmtree(root)


@pytest.mark.parametrize("part", range(1, 12))
async def test_a_torn_tail_is_a_note(tmp_path: Path, part: int) -> None:
    await filled(tmp_path, close=False)
    (tmp_path / DIRECTORY / "checkpoint").unlink()
    path = segments(tmp_path)[-1]
    *_, (position, header) = iter_batches(path.read_bytes())
    path.write_bytes(path.read_bytes()[: position + header.length * part // 12])
    (found,) = looked_at(tmp_path)
    assert not found.damage
    assert found.position == position
    assert "were never acknowledged: the next start cuts them off" in found.why
    assert not looked_at(tmp_path, Depth(running=True)), "a daemon that runs is writing them"
    assert opens(tmp_path)


async def test_an_end_that_is_missing_is_damage(tmp_path: Path) -> None:
    await filled(tmp_path)
    path = segments(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:-8])
    (found,) = damage(tmp_path)
    assert "the log was on disk up to offset" in found.why
    assert found.advice.startswith("the daemon refuses the partition as it is: ")
    assert not opens(tmp_path)


def test_a_missing_segment_is_damage(whole: Path, tmp_path: Path) -> None:
    copied(whole, tmp_path)
    first, second, third, *_ = segments(tmp_path)
    second.unlink()
    (found,) = damage(tmp_path)
    assert found.file == first.name
    assert f"the next segment begins at {int(third.stem)}" in found.why
    first.unlink()
    assert any("the first segment there is begins at" in each.why for each in damage(tmp_path))


def test_what_the_next_start_makes_anew_is_a_note(whole: Path, tmp_path: Path) -> None:
    directory = copied(whole, tmp_path)
    active = segments(tmp_path)[-1]
    for name in (segments(tmp_path)[0].with_suffix(".index").name, active.with_suffix(".producers").name, "clean-end"):
        (directory / name).unlink()
    for name in ("checkpoint.tmp", "00000000000000000000.cleaned", "notes.txt"):
        (directory / name).write_bytes(b"left over")
    assert not damage(tmp_path)
    assert len(looked_at(tmp_path)) == 5
    assert opens(tmp_path)


def test_a_compaction_that_was_about_to_exchange_files_is_a_note(whole: Path, tmp_path: Path) -> None:
    directory = copied(whole, tmp_path)
    first, second, third, *_ = segments(tmp_path)
    data = first.read_bytes() + second.read_bytes()
    (directory / swap_name(0, int(third.stem))).write_bytes(data)
    second.unlink()  # as far as the exchange had come
    found = looked_at(tmp_path)
    assert [each.why for each in found if "exchange" in each.why]
    assert not damage(tmp_path)
    assert opens(tmp_path)
    assert not looked_at(tmp_path)


@pytest.mark.parametrize("name", ["checkpoint", "leader-epochs", "cleaner-point", "clean-end", "index", "producers"])
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_in_other_files_are_found(whole: Path, tmp_path: Path, name: str, seed: int) -> None:
    directory = copied(whole, tmp_path)
    if name == "cleaner-point":
        write_cleaner_point(FileStorage(tmp_path), DIRECTORY, 3)
    if name in ("index", "producers"):
        path = (segments(tmp_path)[0] if name == "index" else segments(tmp_path)[-1]).with_suffix(f".{name}")
    else:
        path = directory / name
    assert not looked_at(tmp_path)
    flip(path, random.Random(seed).randrange(8 * path.stat().st_size))
    found = looked_at(tmp_path)
    assert [each.file for each in found] == [path.name]
    assert found[0].damage == (name != "clean-end")
    assert opens(tmp_path) == (name not in ("checkpoint", "leader-epochs"))


def test_a_snapshot_of_producers_that_a_truncation_may_need_is_looked_at_too(whole: Path, tmp_path: Path) -> None:
    """A replica keeps those of the segments from its high watermark on, not only that of the active one."""
    copied(whole, tmp_path)
    base = int(segments(tmp_path)[2].stem)
    write_snapshot(FileStorage(tmp_path), DIRECTORY, base, [])
    assert not looked_at(tmp_path)
    path = tmp_path / DIRECTORY / f"{base:020}.producers"
    flip(path, 8)
    (found,) = damage(tmp_path, Depth())
    assert found.file == path.name
    assert "the daemon makes it anew" in found.advice


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(STEPS, min_size=1, max_size=3))
@example(turns=SUPERSEDED_BY_AN_ABORT)
@example(turns=DECIDED_LATER)
@example(turns=[[Write(8, 2), End((8,), False), "roll", Write(-1, 1), "roll"], [Write(-1, 2)]])
def test_logs_with_transactions_are_whole_before_and_after_compaction(
    turns: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("compacted")

    async def write_and_compact() -> None:
        storage, made, written = FileStorage(root), follow([]), 0
        for turn in turns:
            made = follow([*turn, "roll"], made)
            put(storage, made, written)
            written = len(made.segments) - 1
            assert not damage(root)
            async with opened(storage, COMPACTED) as log:
                while await log.compact(0) is not None:
                    pass
                await log.wait_committed(log.end_offset)
                assert not damage(root, Depth(running=True))
            assert not looked_at(root)

    with structlog.testing.capture_logs():
        asyncio.run(write_and_compact())
    shutil.rmtree(root)


def told(root: Path, *partitions: str, running: bool = False) -> list[dict[str, Any]]:
    """What a check of the whole directory, or of some of its partitions, prints."""
    stream, depth = io.StringIO(), Depth(running=running)
    progress = Progress(io.StringIO(), 0)
    report = Report(Output(stream, as_json=True), progress)
    for each in roots_in(str(root), partitions):
        DirectoryCheck(each, report, progress, depth).run()
    report.verdict(str(root))
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def with_workers(whole: Path, root: Path) -> None:
    """A data directory of three workers, the second and third of which have a partition each."""
    topic = KeyValue("topics/orders", {"id": "a" * 32, "config": {}}, 1, 1, 1, 0)
    states = [{"leader": node, "leader_epoch": 0, "replicas": [node], "isr": [node]} for node in (1, 2)]
    partitions = [
        KeyValue(f"partitions/{'a' * 32}/{index:07}", state, 1, 1, 1, 0) for index, state in enumerate(states)
    ]
    (root / "metadata.json").write_bytes(encode_metadata("c", 1, map(encode_entry, [topic, *partitions]), 1))
    record = NodeRecord(("s",), 0, "b", True)
    (root / "node.json").write_bytes(identity.encode(identity.NodeFile("d", "c", 0, 1, "ack", record)))
    for index, node in enumerate((1, 2)):
        shutil.copytree(whole / DIRECTORY, root / "workers" / str(node) / f"orders-{index}")


def test_the_directories_of_other_workers_are_looked_at_too(whole: Path, tmp_path: Path) -> None:
    with_workers(whole, tmp_path)
    (verdict,) = told(tmp_path)
    assert (verdict["partitions"], verdict["damaged"]) == (2, 0)
    assert verdict["segments"] == 2 * len(segments(whole))
    segment = min((tmp_path / "workers/2/orders-1").glob("*.log"))
    flip(segment, 8 * 100)
    (tmp_path / "workers/1/inventory").write_bytes(b"{}")
    damaged = [each for each in told(tmp_path) if each["kind"] == "damage"]
    assert [(each["directory"], each["file"]) for each in damaged] == [
        ("", "workers/1/inventory"),
        ("workers/2/orders-1", segment.name),
    ]
    assert "cohort topics delete-records orders --partition 1 --before " in damaged[1]["advice"]


def test_partitions_of_workers_are_asked_for_by_name(whole: Path, tmp_path: Path) -> None:
    with_workers(whole, tmp_path)
    flip(min((tmp_path / "workers/2/orders-1").glob("*.log")), 8 * 100)
    (verdict,) = told(tmp_path, "orders-0")
    assert (verdict["partitions"], verdict["damaged"]) == (1, 0)
    *_, verdict = told(tmp_path, "orders-1", "orders-0")
    assert (verdict["partitions"], verdict["damaged"]) == (2, 1)
    with pytest.raises(NotADataDirectoryError, match="has no partition orders-2"):
        roots_in(str(tmp_path), ["orders-2"])


def test_a_worker_whose_directory_is_gone_is_told_and_what_is_no_workers_is_a_note(whole: Path, tmp_path: Path) -> None:
    with_workers(whole, tmp_path)
    shutil.rmtree(tmp_path / "workers/1")
    (tmp_path / "workers/notes").mkdir()
    (tmp_path / "elsewhere").mkdir()
    lost, note, other, verdict = told(tmp_path)
    assert (lost["kind"], lost["file"]) == ("damage", "workers/1")
    assert "this worker has partitions, and its directory is not here" in lost["why"]
    assert (note["kind"], note["file"]) == ("note", "workers/notes")
    assert "passed over" in other["why"]
    assert verdict["damaged"] == 1
    (tmp_path / "metadata.json").unlink()
    lost, *_ = told(tmp_path)
    assert (lost["kind"], lost["file"]) == ("damage", "metadata.json")


def test_damage_in_metadata_that_was_imported_into_a_cluster_is_a_note(whole: Path, tmp_path: Path) -> None:
    with_workers(whole, tmp_path)
    whole_metadata = (tmp_path / "metadata.json").read_bytes()
    change = encode_change(2, {"topics/gone": None})
    (tmp_path / "metadata.json.imported").write_bytes(whole_metadata)
    (tmp_path / "metadata.changes.imported").write_bytes(change)
    (verdict,) = told(tmp_path)
    assert verdict["notes"] == 0
    (tmp_path / "metadata.json.imported").write_bytes(whole_metadata.replace(b"orders", b"0rders"))
    (tmp_path / "metadata.changes.imported").write_bytes(change.replace(b"gone", b"g0ne"))
    first, second, verdict = told(tmp_path)
    assert (first["file"], second["file"]) == ("metadata.json.imported", "metadata.changes.imported")
    assert first["why"].endswith("nothing reads it since it was imported into a cluster")
    assert (verdict["notes"], verdict["damaged"]) == (2, 0)


def test_what_a_daemon_exchanges_meanwhile_is_looked_at_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look finds a closed segment half exchanged, as if a compaction were at work; the second finds it whole."""
    copied(whole, tmp_path)
    (tmp_path / DIRECTORY / "checkpoint.tmp").touch()
    segment = segments(tmp_path)[1]
    content = segment.read_bytes()
    segment.write_bytes(content[:-8])
    run, looks = PartitionCheck.run, []

    def run_and_change(check: PartitionCheck) -> None:
        run(check)
        looks.append([found for found in check.findings if found.damage])
        segment.write_bytes(content[: -8 * (1 + len(looks) % 2)] if always else content)

    monkeypatch.setattr(PartitionCheck, "run", run_and_change)
    always = False
    (verdict,) = told(tmp_path, running=True)
    assert verdict["damaged"] == 0
    assert [bool(found) for found in looks] == [True, False]
    always = True
    segment.write_bytes(content[:-8])
    note, verdict = told(tmp_path, running=True)
    assert "it changes all the time" in note["why"]
    assert (verdict["damaged"], len(looks)) == (0, 5)
    always = False
    assert {each["kind"] for each in told(tmp_path, running=False)} == {"damage", "note", "verdict"}


def write_segment(root: Path, base: int, *pieces: bytes) -> None:
    """A segment of these batches, at offsets that follow one another."""
    (root / DIRECTORY).mkdir(exist_ok=True)
    offset, data = base, b""
    for piece in pieces:
        data += restamped(piece, offset, 0) + piece[HEADER_BYTES:]
        offset += read_header(piece).record_count
    (root / DIRECTORY / f"{base:020}.log").write_bytes(data)


def test_an_index_that_points_elsewhere_is_damage(tmp_path: Path) -> None:
    batch = batch_of((None, b"a", 0))
    write_segment(tmp_path, 0, *[batch] * 3)
    write_segment(tmp_path, 3, batch)
    size = 3 * len(batch)
    for offset, position, why in (
        (1, len(batch) + 8, "where no batch begins"),
        (2, len(batch), "an entry says that offset 2 begins at position"),
        (3, size, "behind the segment"),
    ):
        index = SparseIndex(1)
        index.add_entry(offset, position, 0)
        (tmp_path / DIRECTORY / "00000000000000000000.index").write_bytes(index.encode(0, 3, size))
        (found,) = damage(tmp_path)
        assert why in found.why
        assert found.file.endswith(".index")
    index = SparseIndex(1)
    index.aborted.note(7, 0, 1)
    (tmp_path / DIRECTORY / "00000000000000000000.index").write_bytes(index.encode(0, 3, size))
    assert "aborted transactions" in damage(tmp_path)[0].why


def test_what_no_disk_did_is_found_with_records(tmp_path: Path) -> None:
    """Checksums are right, but what they cover is no records, no end marker, no record of a coordinator."""
    header = read_header(batch_of((None, b"a", 0)))
    body = bytes(8)
    rubbish = replace(header, length=HEADER_BYTES + 8, body_length=8, body_crc=crc32(body)).pack() + body
    write_segment(tmp_path, 0, rubbish)
    assert not damage(tmp_path, Depth())
    (found,) = damage(tmp_path)
    assert "please report it" in found.advice
    marker = b"".join(encode_control_batch([TransactionEnd(0, 1, 0, True, 0)], 0).pieces())
    head = read_header(marker)
    bad = replace(head, attributes=head.attributes & ~Attributes.KEYS).pack() + marker[HEADER_BYTES:]
    write_segment(tmp_path, 0, bad)
    assert damage(tmp_path, Depth()), "end markers are always looked at"
    shutil.rmtree(tmp_path / DIRECTORY)
    write_segment(tmp_path, 0, batch_of((b"key", b"of nothing", 0)))
    (tmp_path / DIRECTORY).rename(tmp_path / "__consumer_offsets-3")
    check = PartitionCheck(
        ReadOnlyStorage(tmp_path), "__consumer_offsets-3", Tally(), Progress(io.StringIO(), 0), Depth(records=True)
    )
    check.run()
    assert "is no coordinator record" in check.findings[0].why


def kafkas(*, hurt: bool) -> bytes:
    """A batch as a Kafka client made it, in one of ours; ``hurt``: before ours was put around it, so that ours is right."""
    batch = bytearray(written([Record(b"k", b"kafka's", 0)] * 3))
    header = read_batch_header(bytes(batch))
    batch[-3] ^= hurt
    return batch_around(bytes(batch), header, (0, 0))[0]


def test_the_checksums_that_kafkas_clients_made_are_compared_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the bodies are inside what Cohort's own cover: only a look within finds what was wrong before."""
    write_segment(tmp_path, 0, kafkas(hurt=False), kafkas(hurt=True))
    (found,) = damage(tmp_path, Depth())
    assert found.offset == 3
    assert found.why.startswith("the checksum of the batch is 0x")
    monkeypatch.setitem(sys.modules, "google_crc32c", None)  # as if it were not installed
    (note,) = looked_at(tmp_path, Depth())
    assert not note.damage
    assert note.why.startswith("the checksums of Kafka's clients are not compared: ")
    assert "pip install 'aiocohort[kafka]'" in note.why


def test_a_file_that_is_all_damage_is_told_in_few_lines(tmp_path: Path) -> None:
    batch = batch_of((None, b"a" * 50, 0))
    write_segment(tmp_path, 0, *[batch] * 200)
    write_segment(tmp_path, 200, batch)
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    for number in range(200):
        content[number * len(batch) + HEADER_BYTES] ^= 1
    path.write_bytes(content)
    found = damage(tmp_path)
    assert len(found) == MAX_OF_A_FILE + 1
    assert found[-1].why == f"there are more than {MAX_OF_A_FILE} such places: the others are not told"


class UnreadableFile:
    """A file, of whose second batch the disk gives nothing."""

    def __init__(self, file: Any, first: int, end: int) -> None:
        self._file, self._first, self._end = file, first, end

    def read(self, position: int, length: int) -> bytes:
        if position < self._end and position + length > self._first:
            raise OSError(errno.EIO, "Input/output error", "the file")
        return self._file.read(position, length)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_what_the_disk_does_not_give_is_damage_and_the_rest_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of((None, b"a" * 1_000_000, 0))
    write_segment(tmp_path, 0, *[batch] * 5)
    write_segment(tmp_path, 5, batch)
    real = ReadOnlyStorage.open

    def open_file(storage: ReadOnlyStorage, path: str, create: bool = False) -> Any:
        file = real(storage, path, create)
        return UnreadableFile(file, 1_100_000, 1_100_001) if path.endswith("0000.log") else file

    monkeypatch.setattr(ReadOnlyStorage, "open", open_file)
    found, tally = tallied(tmp_path, Depth())
    (unreadable,) = (each for each in found if each.damage)
    assert "the disk does not give it: " in unreadable.why
    assert tally.batches >= 3


def test_a_storage_for_looking_changes_nothing(tmp_path: Path) -> None:
    storage = ReadOnlyStorage(tmp_path)
    (tmp_path / "file").write_bytes(b"content")
    changes: list[Callable[[], object]] = [
        lambda: storage.open("new", create=True),
        lambda: storage.make_directory("new"),
        lambda: storage.remove("file"),
        lambda: storage.remove_tree("file"),
        lambda: storage.rename("file", "new"),
        lambda: storage.sync_directory(""),
        lambda: storage.write_file("file", b""),
        lambda: storage.open("file").append([b"more"]),
        lambda: storage.open("file").truncate(0),
    ]
    for change in changes:
        with pytest.raises(OSError, match=r"looked at only|Bad file descriptor|Invalid argument"):
            change()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert storage.read_file("file") == b"content"
