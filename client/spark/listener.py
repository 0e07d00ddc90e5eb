"""What Spark tells the program that started a query: commits of its group at once, and snapshots of what it does.

The source sees that a batch is complete when Spark plans the next one. With a trigger of a minute that is a minute later,
and after the last batch never. Spark tells its listeners at once, and so the listener commits in the query's name.

When a query ends, Spark may kill the process of the source without a word; then the listener gives up the group for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from client.errors import CohortError, ConnectionLostError, RequestTimedOutError
from client.log import get_logger
from client.spark.monitor import QueryMonitor, offsets_of
from client.spark.owner import Owner, commit, leave
from client.spark.positions import Positions

log = get_logger()

_LEFT_ALONE_S: Final = 20.0
"""How long daemons that did not answer are not asked again: a listener that waits for them with each batch of each query
holds up what Spark tells all others, and what is told falls ever further behind."""


class GroupCommits(StreamingQueryListener):
    """Commits what each query with a ``group.id`` has completed. One for each session; see ``commit_as_batches_complete``.

    A commit that fails is logged and left to the source, which commits when the next batch is planned. A group that could
    not be given up is free when the session of the query is over. ``clock`` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._runs: dict[str, dict[str, tuple[Owner, Positions]]] = {}
        self._clock = clock
        self._left_alone: dict[str, float] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing is complete yet."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing has changed."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A batch is complete: Spark has written so to the checkpoint."""
        for source in event.progress.sources:
            reached, reported = offsets_of(source.endOffset), offsets_of(source.latestOffset)
            owner = None if reported is None else Owner.of(reported)
            if reached is None or reported is None or owner is None:
                continue
            positions = Positions(Positions.from_json(reached).known_to(Positions.from_json(reported)))
            groups = self._runs.setdefault(str(event.progress.runId), {})
            if groups.get(owner.group_id) == (owner, positions):
                continue
            groups[owner.group_id] = owner, Positions({})
            try:
                self._ask(owner, partial(commit, owner, positions.offsets))
            except CohortError as error:
                log.info("commit_left_to_the_source", group=owner.group_id, error=str(error))
            else:
                groups[owner.group_id] = owner, positions

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The query has ended, and so has its source, which may have had no time to leave its group."""
        for owner, _ in self._runs.pop(str(event.runId), {}).values():
            try:
                self._ask(owner, partial(leave, owner))
            except CohortError as error:
                log.info("query_ended_without_leaving_its_group", group=owner.group_id, error=str(error))

    def _ask(self, owner: Owner, request: Callable[[], None]) -> None:
        """Raises what ``request`` does, and at once for daemons that did not answer a moment ago."""
        now, servers = self._clock(), owner.bootstrap_servers
        self._left_alone = {each: until for each, until in self._left_alone.items() if now < until}
        if servers in self._left_alone:
            raise ConnectionLostError(f"{servers} did not answer a moment ago")
        try:
            request()
        except (ConnectionLostError, RequestTimedOutError):
            self._left_alone[servers] = self._clock() + _LEFT_ALONE_S
            raise


class QueryEvents(StreamingQueryListener):
    """Tells a ``QueryMonitor`` what Spark tells of its queries."""

    def __init__(self, monitor: QueryMonitor) -> None:
        self._monitor = monitor

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """A query has started."""
        self._monitor.query_started(str(event.id), str(event.runId), event.name, event.timestamp)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A trigger is over."""
        self._monitor.query_progressed(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing has changed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The query has ended."""
        self._monitor.query_ended(str(event.id), str(event.runId), event.exception)
