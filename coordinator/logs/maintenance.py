"""Log maintenance: retention, compaction, checkpoints, the expiration of producers, and another try for logs that could not
be opened.

Retention and compaction each look after one log at a time, so that maintenance never takes more than two disk calls at a
time from requests, and a compaction that takes an hour keeps no other log from being retained. A log that fails, for
whatever reason, is named in the daemon's log and by ``fault``, serves on, and is tried again with the next look. A
compaction that fails has read all of the log and may have filled the disk: it is tried again after twice the interval, then
after twice as long each time, but at least every ten minutes.

**The wall clock** decides what has expired, as ages go on while the daemon is down. It may step:

- Backwards: nothing is old until it has caught up. Records live longer; none is lost.
- Forwards: a wrong clock makes everything look old at once. When the wall clock has gained more than a check interval on the
  loop's clock since the last look, nothing is deleted for its age in this one, and the next one believes it: a slip that is
  corrected within an interval costs nothing. (A machine that slept looks the same; its look is put off, too.)

The first look comes an interval after the start, which gives a clock that is wrong at boot the time to be set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from coordinator.clock import now_ms
from coordinator.log.errors import LogClosedError, LogError
from coordinator.log.partition import PartitionLog
from coordinator.log_output import get_logger
from coordinator.logs.log_manager import LogManager

log = get_logger()

_LONGEST_PAUSE_MS: Final = 600_000
_REOPEN_INTERVAL_MS: Final = 1_000


@dataclass(slots=True)
class MaintenanceCounts:
    """What maintenance has done since the daemon started."""

    expired_records: int = 0
    """By how many offsets retention has moved the starts of logs."""
    retention_failures: int = 0
    compactions: int = 0
    compaction_failures: int = 0


class LogMaintenance:
    """Looks after the logs of a node until it is cancelled. Times are milliseconds."""

    def __init__(
        self,
        logs: LogManager,
        wall_ms: Callable[[], int],
        *,
        compaction_interval_ms: int,
        checkpoint_interval_ms: int,
        retention_check_interval_ms: int,
        producer_id_expiration_ms: int,
    ) -> None:
        self._logs = logs
        self._wall_ms = wall_ms
        self._compaction_interval_ms = compaction_interval_ms
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._retention_check_interval_ms = retention_check_interval_ms
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self.counts = MaintenanceCounts()
        self._last_look = (0, 0)
        self._failing: dict[PartitionLog, tuple[int, int]] = {}
        """Logs whose compaction failed: how often one after the other, and the loop's time of the next try."""

    async def run(self) -> None:
        """Looks at all logs again and again, each kind of maintenance at its own pace."""
        self.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._every(self._retention_check_interval_ms, self.retain), name="cohort-retention")
            tasks.create_task(self._every(self._compaction_interval_ms, self.compact), name="cohort-compaction")
            tasks.create_task(self._every(self._checkpoint_interval_ms, self.note_ends), name="cohort-checkpoints")
            tasks.create_task(self._every(_REOPEN_INTERVAL_MS, self._logs.reopen), name="cohort-reopening")

    def start(self) -> None:
        """Takes the clocks as they are: from here on the wall clock is compared with the time that passes."""
        self._last_look = now_ms(asyncio.get_running_loop()), self._wall_ms()

    async def _every(self, pause_ms: int, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(pause_ms / 1000)
            try:
                await look()
            except Exception:  # a fault of ours must not end maintenance for good: the disk would fill up in silence
                log.exception("log_maintenance_failed")

    async def retain(self) -> None:
        """Deletes what has expired where this node leads, and forgets producers that have been silent for too long."""
        wall_ms = self._believed_wall_ms()
        for topic, index, opened in self._logs.opened():
            await asyncio.sleep(0)  # however many there are, requests come in between
            if wall_ms is not None:
                opened.producers.expire(wall_ms, self._producer_id_expiration_ms)
            try:
                leads = (topic, index) in self._logs.led
                deleted = await (opened.retain(wall_ms) if leads else opened.retain(wall_ms, leads=False))
            except LogClosedError:
                continue  # deleted meanwhile
            except Exception as error:
                opened.retention_fault = f"retention failed: {error}"
                self.counts.retention_failures += 1
                _note_failure("retention_failed", topic, index, error)
                continue
            opened.retention_fault = ""
            self.counts.expired_records += deleted
            if deleted:
                start = opened.start_offset
                log.info("records_expired", topic=topic, partition=index, records=deleted, log_start_offset=start)

    async def note_ends(self) -> None:
        """Renews the checkpoint of each log that has grown since the last look."""
        for topic, index, opened in self._logs.opened():
            await asyncio.sleep(0)
            try:
                await opened.note_end()
            except LogClosedError:
                continue  # deleted meanwhile
            except Exception as error:
                _note_failure("checkpoint_not_written", topic, index, error)

    async def compact(self) -> None:
        """Compacts the logs that are worth it, those of the highest dirty ratio first."""
        dirty: list[tuple[float, str, int, PartitionLog]] = []
        for topic, index, opened in self._logs.opened():
            if opened.config.compact:
                await asyncio.sleep(0)
                if (ratio := opened.dirty_ratio) > 0:
                    dirty.append((-ratio, topic, index, opened))
        dirty.sort(key=lambda entry: entry[:3])
        self._failing = {opened: self._failing[opened] for *_, opened in dirty if opened in self._failing}
        for _, topic, index, opened in dirty:
            failures, again_ms = self._failing.get(opened, (0, 0))
            if failures and now_ms(asyncio.get_running_loop()) < again_ms:
                continue
            await asyncio.sleep(0)
            try:
                self.counts.compactions += await opened.compact(self._bounded_wall_ms()) is not None
            except LogClosedError:
                continue  # deleted meanwhile
            except Exception as error:
                _note_failure("compaction_failed", topic, index, error)
            if opened.compaction_fault:
                self.counts.compaction_failures += 1
                pause_ms = min(self._compaction_interval_ms * 2 ** min(failures + 1, 20), _LONGEST_PAUSE_MS)
                self._failing[opened] = failures + 1, now_ms(asyncio.get_running_loop()) + pause_ms
            else:
                self._failing.pop(opened, None)

    def _bounded_wall_ms(self) -> int:
        """The wall clock, unless it ran ahead further than a look for expired records would believe."""
        loop_ms, wall_ms = self._last_look
        passed_ms = now_ms(asyncio.get_running_loop()) - loop_ms
        return min(self._wall_ms(), wall_ms + passed_ms + self._retention_check_interval_ms)

    def _believed_wall_ms(self) -> int | None:
        now = now_ms(asyncio.get_running_loop()), self._wall_ms()
        before, self._last_look = self._last_look, now
        gained_ms = (now[1] - before[1]) - (now[0] - before[0])
        if gained_ms <= self._retention_check_interval_ms:
            return now[1]
        log.warning(
            "retention_by_age_deferred",
            reason="the wall clock went further than the time that passed, and may be wrong",
            gained_ms=gained_ms,
        )
        return None


def _note_failure(event: str, topic: str, index: int, error: Exception) -> None:
    """Logs what failed, with a traceback when it is a fault of this program. The log itself is as it was."""
    expected = isinstance(error, LogError | OSError)
    log.error(
        event, topic=topic, partition=index, error=str(error) or repr(error), exc_info=None if expected else error
    )
