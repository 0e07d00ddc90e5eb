"""The check of one partition's directory: what recovery looks at, and every checksum of every batch. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from coordinator.filesystem.files import ReadOnlyStorage
from coordinator.filesystem.storage import TEMPORARY_SUFFIX, File
from coordinator.inspection.batches import Batch, Damage, batches
from coordinator.inspection.coordinator_records import contents_of, in_words
from coordinator.inspection.file_dump import MAX_BYTES
from coordinator.inspection.findings import MAX_OF_A_FILE, Finding, Tally
from coordinator.inspection.output import Progress
from coordinator.log.aborted import AbortedTransactions
from coordinator.log.checkpoints import (
    CHECKPOINT,
    CLEANER_POINT,
    LEADER_EPOCHS,
    Checkpoint,
    ChecksumError,
    decode_checkpoint,
    decode_cleaner_point,
)
from coordinator.log.clean_end import CLEAN_END, decode_clean_end
from coordinator.log.config import LogConfig
from coordinator.log.errors import LogDamagedError
from coordinator.log.index import SparseIndex, decode_index
from coordinator.log.producer_snapshots import decode_snapshot
from coordinator.log.recovery import check_end, check_first, epochs_of
from coordinator.log.scan import Scan, ends_in, proof_of_damage, scan_segment
from coordinator.log.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCERS_SUFFIX,
    Segment,
    base_offset_of,
    file_name,
    swap_range_of,
)
from coordinator.logs.topic_ids import SUFFIX as TOPIC_ID_SUFFIX
from protocol.errors import ProtocolError
from protocol.kafka.batch import check_crc, read_batch_header
from protocol.record_batch import Attributes, decode_columns, kafka_batch_in, what_to_install

_CONFIG: Final = LogConfig()
_CONTROL: Final = int(Attributes.CONTROL)
_KAFKA_BODY: Final = int(Attributes.KAFKA_BODY)
_REPLACE: Final = (
    "restore the directory from a backup; in a cluster move it away while the node is stopped, and the node copies the "
    "partition from its leader"
)
_REFUSED: Final = f"the daemon refuses the partition as it is: {_REPLACE}"
_CONTENT: Final = (
    "its checksum is right, so the disk has kept what was written: please report it, with what wrote the records; readers "
    "can seek behind it"
)
_MADE_ANEW: Final = "nothing, the daemon makes it anew; but look at the disk"
_KNOWN: Final = frozenset({CHECKPOINT, LEADER_EPOCHS, CLEANER_POINT, CLEAN_END})


@dataclass(frozen=True, slots=True)
class Depth:
    """``records``: also decode the records of every batch. ``running``: a daemon uses the directory meanwhile."""

    records: bool = False
    running: bool = False


class PartitionCheck:
    """Looks at the directory once; ``findings`` has what was found."""

    def __init__(
        self, storage: ReadOnlyStorage, directory: str, tally: Tally, progress: Progress, depth: Depth
    ) -> None:
        self.findings: list[Finding] = []
        self._storage = storage
        self._directory = directory
        self._tally = tally
        self._progress = progress
        self._depth = depth
        self._of_file: dict[str, int] = {}
        self._lacking: set[str] = set()

    def run(self) -> None:
        """Fills ``findings``. Raises ``OSError`` when the directory cannot be listed."""
        names = self._storage.list(self._directory)
        self._progress.label(self._directory)
        self._tally.partitions += 1
        checkpoint = self._checkpoint(names)
        segments = self._segments(names)
        bases = sorted(segments)
        try:
            start = check_first(self._directory, bases, checkpoint)
        except LogDamagedError as error:
            self._damaged(error.where, error.why, _REFUSED)
            start = bases[0] if bases else 0
        gone = [base for base, following in pairwise(bases) if following <= start]
        for base in gone:
            self._note(
                segments[base], f"it lies before offset {start}, where the log begins: the next start removes it"
            )
        bases = bases[len(gone) :]
        for base, following in pairwise(bases):
            self._closed(segments[base], base, following)
        if bases:
            end = self._active(segments[bases[-1]], bases[-1], checkpoint)
            if end is not None and end < start:
                self._note(segments[bases[-1]], f"the log begins anew at offset {start}: the next start finishes that")
            self._beside(names, bases, start, end)

    def _segments(self, names: Sequence[str]) -> dict[int, str]:
        """The file of each segment by its base offset; a compaction that is done has its output in place of its input."""
        segments = {base: name for name in names if (base := base_offset_of(name, LOG_SUFFIX)) is not None}
        for name in names:
            covered = swap_range_of(name)
            if covered is not None:
                self._note(name, "a compaction is done but for the exchange of files: the next start finishes it")
                segments = {base: kept for base, kept in segments.items() if not covered[0] <= base < covered[1]}
                segments[covered[0]] = name
            elif name.endswith((TEMPORARY_SUFFIX, CLEANED_SUFFIX)):
                self._note(name, "something was being written when the daemon ended: the next start removes it")
            elif not self._is_known(name):
                self._note(name, "no file of Cohort has this name: it is passed over")
        return segments

    def _is_known(self, name: str) -> bool:
        suffixes = (LOG_SUFFIX, INDEX_SUFFIX, PRODUCERS_SUFFIX)
        return (
            name in _KNOWN
            or name.endswith(TOPIC_ID_SUFFIX)
            or any(base_offset_of(name, suffix) is not None for suffix in suffixes)
        )

    def _checkpoint(self, names: Sequence[str]) -> Checkpoint | None:
        if CHECKPOINT not in names:
            return None
        try:
            return decode_checkpoint(self._content(CHECKPOINT))
        except (ChecksumError, OSError) as error:
            advice = (
                f"{_REFUSED}. When nothing else is damaged: remove the file; then nothing tells any more whether the end of "
                "the log is missing"
            )
            self._damaged(CHECKPOINT, str(error), advice)
            return None

    def _closed(self, name: str, base: int, following: int) -> None:
        """A segment that others follow: it holds all offsets up to the next one's, and its index is right."""
        try:
            file = self._storage.open(f"{self._directory}/{name}")
        except OSError as error:
            self._damaged(name, f"it cannot be opened: {error}", _REFUSED)
            return
        try:
            size = file.size()
            index = _IndexCheck(self._index(base, following, size) if name.endswith(LOG_SUFFIX) else None)
            end: int | None = base
            for found in self._looked_at(file, size, base, name):
                if isinstance(found, Damage):
                    self._damaged_batch(name, found, following)
                    index.damaged(found.end)
                    end = None
                else:
                    index.batch(found)
                    end = found.header.next_offset
        finally:
            file.close()
        if end is not None and end != following:
            why = f"it ends at offset {end}, but the next segment begins at {following}"
            self._damaged(name, why, _REFUSED, position=size)
        why = index.verdict()
        if why:
            self._damaged(file_name(base, INDEX_SUFFIX), why, "remove the file: the daemon makes it anew")

    def _looked_at(self, file: File, size: int, base: int, name: str) -> Iterator[Batch | Damage]:
        """The batches of a segment, counted; what is wrong within a whole one is found here."""
        self._tally.segments += 1
        self._tally.size += size
        for found in batches(file, size, base):
            if isinstance(found, Batch):
                self._count(found)
                why = self._wrong_within(name, found)
                if why:
                    self._damaged(name, why, _CONTENT, position=found.position, offset=found.header.base_offset)
            yield found

    def _index(self, base: int, following: int, size: int) -> SparseIndex | None:
        name = file_name(base, INDEX_SUFFIX)
        try:
            end, index = decode_index(self._content(name), _CONFIG.index_interval_bytes)
        except FileNotFoundError:
            self._note(name, "it is missing: the next start makes it anew")
            return None
        except (ChecksumError, OSError) as error:
            self._damaged(name, str(error), _MADE_ANEW)
            return None
        if (end.base_offset, end.next_offset, end.end_position) != (base, following, size):
            why = f"it describes offsets {end.base_offset} to {end.next_offset} in {end.end_position} bytes"
            self._note(name, f"{why}: the next start makes it anew")
            return None
        return index

    def _active(self, name: str, base: int, checkpoint: Checkpoint | None) -> int | None:
        """The last segment, which may have a torn tail and nothing worse; returns where the log ends, None if unknown."""
        segment = Segment(f"{self._directory}/{name}", base)
        try:
            file = self._storage.open(segment.path)
        except OSError as error:
            self._damaged(name, f"it cannot be opened: {error}", _REFUSED)
            return None
        try:
            size = file.size()
            position, end = 0, base
            damage: list[Damage] = []
            for found in self._looked_at(file, size, base, name):
                if isinstance(found, Damage):
                    damage.append(found)
                elif not damage:
                    position, end = found.position + found.header.length, found.header.next_offset
            whole = Scan(SparseIndex(_CONFIG.index_interval_bytes), position, end, None)
            return self._end_of(name, segment, file, size, damage, whole, checkpoint)
        finally:
            file.close()

    def _end_of(
        self,
        name: str,
        segment: Segment,
        file: File,
        size: int,
        damage: Sequence[Damage],
        whole: Scan,
        checkpoint: Checkpoint | None,
    ) -> int | None:
        """Whether what is not whole is a torn tail, and whether everything is there that was on disk."""
        try:
            scanned = scan_segment(self._directory, segment, file, size, _CONFIG) if damage else whole
            proof = proof_of_damage(file, scanned.hole, size) if scanned.hole is not None else None
            if proof is None:
                check_end(self._storage, self._directory, segment, scanned, checkpoint, _CONFIG)
        except LogDamagedError as error:
            self._damaged(name, error.why, _REFUSED)
            return None
        except OSError as error:
            self._damaged(name, f"the disk does not give all of it: {error}", _REFUSED)
            return None
        if proof is not None:
            for found in damage:
                self._damaged(name, found.why, _REFUSED, position=found.position, offset=found.offset)
            return None
        if scanned.hole is not None and not self._depth.running:
            why = (
                f"the last {size - scanned.position:,} bytes were being written when the daemon ended ({scanned.hole.why}), "
                "and were never acknowledged: the next start cuts them off"
            )
            self._note(name, why, position=scanned.position)
        return scanned.next_offset

    def _count(self, batch: Batch) -> None:
        self._tally.batches += 1
        self._tally.records += batch.header.record_count
        self._progress.advance(batch.header.length)

    def _wrong_within(self, name: str, batch: Batch) -> str:
        """What is wrong with the content of a whole batch, "" for nothing."""
        try:
            if batch.header.attributes & _CONTROL:
                ends_in(batch.content, batch.header)
                return ""
            if batch.header.attributes & _KAFKA_BODY:
                self._check_kafka(name, batch)
            if self._depth.records:
                self._decode(batch)
        except ProtocolError as error:
            return str(error)
        except ModuleNotFoundError as error:
            self._not_looked_at(name, "records are not decoded", error)
        return ""

    def _check_kafka(self, name: str, batch: Batch) -> None:
        """Compares the checksum that a Kafka client has made. Raises ``ProtocolError``."""
        inner = kafka_batch_in(batch.content, 0, batch.header)
        header = read_batch_header(inner)
        try:
            check_crc(inner, header)
        except ModuleNotFoundError as error:
            self._not_looked_at(name, "the checksums of Kafka's clients are not compared", error)

    def _not_looked_at(self, name: str, what: str, error: ModuleNotFoundError) -> None:
        """Tells once a partition what is missing for it."""
        why = f"{what}: {what_to_install(error)}"
        if why not in self._lacking:
            self._lacking.add(why)
            self._note(name, why)

    def _decode(self, batch: Batch) -> None:
        """Inflates the records and takes them apart. Raises ``ProtocolError``, ``ModuleNotFoundError``."""
        columns = decode_columns(batch.content, 0, batch.header)
        columns.check()
        columns.headers()
        contents = contents_of(self._directory)
        if contents != "records":
            for key, value in zip(columns.keys(), columns.values(), strict=True):
                in_words(contents, key, value)

    def _beside(self, names: Sequence[str], bases: Sequence[int], start: int, end: int | None) -> None:
        """The small files that belong to no one segment."""
        active = bases[-1]
        if LEADER_EPOCHS in names:
            try:
                epochs_of(self._storage, self._directory, start, active if end is None else end)
            except LogDamagedError as error:
                self._damaged(LEADER_EPOCHS, error.why, _REFUSED)
            except OSError as error:
                self._damaged(LEADER_EPOCHS, f"the disk does not give it: {error}", _REFUSED)
        if CLEANER_POINT in names:
            try:
                decode_cleaner_point(self._content(CLEANER_POINT))
            except (ChecksumError, OSError) as error:
                self._damaged(CLEANER_POINT, str(error), "nothing, compaction begins anew; but look at the disk")
        if CLEAN_END in names:
            try:
                decode_clean_end(self._content(CLEAN_END), _CONFIG.index_interval_bytes)
            except (ChecksumError, OSError) as error:
                self._note(CLEAN_END, f"{error}: the next start reads the last segment instead")
        self._producers(names, active)

    def _producers(self, names: Sequence[str], active: int) -> None:
        """The snapshots of producers: the active segment's, and those of segments to which the log may be cut back."""
        for name in names:
            if base_offset_of(name, PRODUCERS_SUFFIX) is None:
                continue
            try:
                decode_snapshot(self._content(name))
            except (ChecksumError, OSError) as error:
                self._damaged(name, str(error), f"{_MADE_ANEW}, and at what producers are told once")
        snapshot = file_name(active, PRODUCERS_SUFFIX)
        if active > 0 and snapshot not in names:
            self._note(snapshot, "it is missing: the next start makes it anew from all segments")

    def _content(self, name: str) -> bytes:
        path = f"{self._directory}/{name}"
        if self._storage.size(path) > MAX_BYTES:
            raise ChecksumError(f"it has {self._storage.size(path):,} bytes: no such file is as large")
        return self._storage.read_file(path)

    def _damaged_batch(self, name: str, found: Damage, following: int) -> None:
        topic, _, index = self._directory.rpartition("-")
        behind = f"cohort topics delete-records {topic} --partition {index} --before {following}"
        advice = (
            f"what reads this part fails there and can seek behind it; {_REPLACE}; or give up all that lies before the next "
            f"segment: {behind}"
        )
        self._damaged(name, found.why, advice, position=found.position, offset=found.offset)

    def _damaged(
        self, file: str, why: str, advice: str, *, position: int | None = None, offset: int | None = None
    ) -> None:
        file = file.removeprefix(f"{self._directory}/")
        count = self._of_file[file] = self._of_file.get(file, 0) + 1
        if count == MAX_OF_A_FILE + 1:
            why, position, offset = (
                f"there are more than {MAX_OF_A_FILE} such places: the others are not told",
                None,
                None,
            )
        if count <= MAX_OF_A_FILE + 1:
            self.findings.append(Finding(True, self._directory, file, why, advice, position, offset))

    def _note(self, file: str, why: str, *, position: int | None = None) -> None:
        self.findings.append(Finding(False, self._directory, file, why, "", position))


class _IndexCheck:
    """Compares an index, None for none, with the batches of its segment."""

    def __init__(self, index: SparseIndex | None) -> None:
        self._index = index
        self._entries = iter(()) if index is None else index.entries()
        self._next = next(self._entries, None)
        self._aborted = AbortedTransactions()
        self._whole = True
        self._why = ""

    def batch(self, batch: Batch) -> None:
        """The next whole batch of the segment."""
        header, position = batch.header, batch.position
        while self._next is not None and self._next[1] < position:
            self._why = self._why or f"an entry points to position {self._next[1]}, where no batch begins"
            self._next = next(self._entries, None)
        if self._next is not None and self._next[1] == position:
            if self._next[0] != header.base_offset:
                self._why = self._why or f"an entry says that offset {self._next[0]} begins at position {position}"
            self._next = next(self._entries, None)
        if header.attributes & _CONTROL:
            try:
                self._aborted.note_ends(header.base_offset, ends_in(batch.content, header))
            except ProtocolError:
                self._whole = False  # which is told of the segment

    def damaged(self, end: int) -> None:
        """The segment is damaged up to ``end``: nothing is known of entries that point there."""
        self._whole = False
        while self._next is not None and self._next[1] < end:
            self._next = next(self._entries, None)

    def verdict(self) -> str:
        """What is wrong with the index, "" for nothing."""
        if self._index is None or self._why:
            return self._why
        if self._next is not None and self._whole:
            return f"an entry points to position {self._next[1]}, behind the segment"
        if self._whole and self._index.aborted.integers() != self._aborted.integers():
            return (
                f"it has {len(self._index.aborted)} aborted transactions, the segment {len(self._aborted)}, or others"
            )
        return ""
