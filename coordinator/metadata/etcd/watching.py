"""Follows the keys below a prefix: a list of all, then a watch from there on, for as long as the store is open.

The watch begins at the revision that is known, not behind it: members answer nothing to a question for progress before they
have reached the revision that a watch began with, so on a quiet etcd a living watch could not be told from a dead one. And
where what follows is compacted meanwhile, the watch is refused and all is listed again: members before 3.5.18 may pass over
a deletion at the very revision that was compacted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

from coordinator.log_output import get_logger
from coordinator.metadata.authority import Change, Delta, KeyValue
from coordinator.metadata.etcd.rpc import (
    Etcd,
    EtcdRefusedError,
    EtcdUnavailableError,
    Happening,
    RevisionsForgottenError,
    StreamBrokenError,
    end_of_prefix,
)
from coordinator.metadata.mirror import Mirror

log = get_logger()

PAGE: Final = 1000
_CALL_MS: Final = 5_000
_PAUSE_S: Final = (0.0, 0.05, 0.1, 0.2, 0.5)
"""Before a watch is begun again, by the number of those that brought nothing; the last one from then on."""
_ASK_AGAIN_S: Final = 0.1
"""A member that lags behind, or has sent a watch half of what it owes, passes over a question for progress."""


class EtcdWentBackError(Exception):
    """etcd is at a revision below one that was seen: it was restored from an older backup."""


class UnreadableKeyError(Exception):
    """A key below the prefix does not hold JSON."""


class Following:
    """Keeps a mirror, whose keys are without the prefix, and tells each delta.

    ``on_delta`` is called on the loop, in order. ``on_fatal`` is called with the reason when the mirror cannot be kept any
    more; from then on every wait raises.
    """

    def __init__(
        self,
        etcd: Etcd,
        prefix: str,
        mirror: Mirror,
        on_delta: Callable[[Delta], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        self.mirror = mirror
        self._etcd = etcd
        self._prefix = prefix
        self._end = end_of_prefix(prefix)
        self._on_delta = on_delta
        self._on_fatal = on_fatal
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._ask: Callable[[], None] | None = None
        self._failure: Exception | None = None

    async def start(self, timeout_ms: int) -> None:
        """Lists all keys, and follows them from then on. Raises ``EtcdUnavailableError`` and ``UnreadableKeyError``."""
        await self._list(timeout_ms)
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Ends it. Who waits is told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(EtcdUnavailableError("the store is closed", "none"))

    async def reach(self, revision: int, timeout_ms: int) -> None:
        """Returns once the mirror has what happened up to ``revision``. Raises ``TimeoutError``, and what ended it."""
        self._check()
        if self.mirror.revision >= revision:
            return
        reached = asyncio.get_running_loop().create_future()
        entry = (revision, reached)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not reached.done():
                    if self._ask is not None:
                        self._ask()
                    await asyncio.wait([reached], timeout=_ASK_AGAIN_S)
                await reached
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    async def now(self, timeout_ms: int) -> int:
        """etcd's revision as it is now, linearizable. Raises ``EtcdUnavailableError`` and ``EtcdWentBackError``."""
        known = self.mirror.revision
        page = await self._etcd.range(self._prefix, self._end, limit=1, timeout_ms=timeout_ms)
        if page.revision < known:
            self._give_up(self._went_back(page.revision, known))
        self._check()
        return page.revision

    def _went_back(self, revision: int, known: int) -> EtcdWentBackError:
        return EtcdWentBackError(
            f"etcd at {self._etcd.endpoints} is at revision {revision}, this node has seen {known}: it was restored from an "
            "older backup, or is another one. What was decided meanwhile is lost. Restore the newest backup, or stop all "
            "nodes and start them anew"
        )

    # The task

    async def _follow(self) -> None:
        quiet = 0
        reason = ""
        try:
            while self._failure is None:
                before = self.mirror.revision
                try:
                    await self._watch()
                except (StreamBrokenError, EtcdUnavailableError, EtcdRefusedError) as error:
                    if str(error) != reason:  # one that stays the same is said once
                        log.warning("metadata_watch_begins_again", reason=str(error), revision=self.mirror.revision)
                    reason = str(error)
                quiet = 0 if self.mirror.revision > before else min(quiet + 1, len(_PAUSE_S) - 1)
                await asyncio.sleep(_PAUSE_S[quiet])
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the mirror would silently grow old
            self._give_up(error)

    async def _watch(self) -> None:
        """Until the watch ends, which it always does with an error."""
        await self.now(_CALL_MS)
        watch = await self._etcd.watch(
            self._prefix, self._end, revision=max(1, self.mirror.revision), timeout_ms=_CALL_MS
        )
        self._ask = watch.ask_progress
        if self._waiting:
            watch.ask_progress()
        try:
            held: list[Happening] = []
            while True:
                news = await watch.next()
                held += news.happenings
                if not news.unfinished:
                    self._take(held)
                    held = []
                    if news.progress > self.mirror.revision:
                        self.mirror.apply(Delta(news.progress, ()))
                    self._reached()
        except RevisionsForgottenError as error:
            log.info("metadata_listed_again", reason=str(error), revision=self.mirror.revision)
            await self._list(_CALL_MS)
        finally:
            self._ask = None
            await watch.close()

    def _take(self, happenings: list[Happening]) -> None:
        for revision, together in groupby(happenings, key=lambda happening: happening.revision):
            if revision <= self.mirror.revision:
                continue
            changes = []
            for _, key, after in sorted(together, key=lambda happening: happening.key):
                name = key.removeprefix(self._prefix)
                changes.append(Change(name, self.mirror.get(name), None if after is None else self._read(after)))
            self._tell(Delta(revision, tuple(changes)), applied=False)

    async def _list(self, timeout_ms: int) -> None:
        """All keys at one revision, in pages; begun again when that one is compacted meanwhile."""
        while True:
            known = self.mirror.revision
            keys: list[KeyValue] = []
            first, revision = self._prefix, 0
            try:
                while True:
                    page = await self._etcd.range(
                        first, self._end, limit=PAGE, revision=revision, timeout_ms=timeout_ms
                    )
                    revision = revision or page.revision
                    keys += map(self._read, page.keys)
                    if not page.more:
                        break
                    first = page.keys[-1].key + "\0"
            except RevisionsForgottenError:
                continue
            break
        if revision < known:
            self._give_up(self._went_back(revision, known))
            self._check()
        delta = self.mirror.replace(keys, revision)
        if delta is not None and delta.changes:
            self._tell(delta, applied=True)
        self._reached()

    def _tell(self, delta: Delta, *, applied: bool) -> None:
        if applied or self.mirror.apply(delta):
            self._on_delta(delta)

    def _read(self, found: KeyValue) -> KeyValue:
        value = decoded(found, self._etcd.endpoints)
        return found._replace(key=found.key.removeprefix(self._prefix), value=value)

    # Who waits

    def _reached(self) -> None:
        for entry in self._waiting:
            revision, reached = entry
            if revision <= self.mirror.revision and not reached.done():
                reached.set_result(None)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _give_up(self, failure: Exception) -> None:
        """The mirror cannot be kept any more: said once, and to all who wait."""
        if self._failure is None:
            log.error("metadata_not_followed", reason=str(failure), exc_info=failure)
            self._fail(failure)
            self._on_fatal(f"the metadata in etcd cannot be followed: {failure}")

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        for _, reached in self._waiting:
            if not reached.done():
                reached.set_exception(failure)


def decoded(found: KeyValue, endpoints: str) -> Any:
    """What a key holds. Raises ``UnreadableKeyError``."""
    try:
        return json.loads(found.value)
    except ValueError as error:
        raise UnreadableKeyError(
            f"the key {found.key} in etcd at {endpoints} does not hold JSON: Cohort did not write it"
        ) from error
