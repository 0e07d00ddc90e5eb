"""Commits in the name of a query as soon as Spark says that a batch is complete."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR, create_connection, create_server, socket
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from client import FencedInstanceIdError, TopicPartition
from client.spark.listener import GroupCommits
from client.spark.options import ConnectionOptions
from client.spark.owner import Owner, commit
from client.spark.ownership import INSTANCE_ID, offset_commit_topics
from client.spark.tasks.blocking_cluster import BlockingCluster
from client.spark.tasks.blocking_connection import Until
from protocol.messages.offsets import OffsetCommitRequest, OffsetCommitResponse
from tests.daemon_process import DaemonProcess
from tests.integration.spark.calls import Query, administer, prepare


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        yield daemon.address


def progress(query: Query, **others: Any) -> Any:
    """What Spark tells its listeners after a batch of this query, beside sources of other kinds."""
    source = SimpleNamespace(endOffset=json.dumps(query.at), latestOffset=json.dumps(query.reader.reportLatestOffset()))
    strangers = [
        SimpleNamespace(endOffset=text, latestOffset=text) for text in (None, "17", '{"t": {"0": 1}}', "no JSON")
    ]
    return SimpleNamespace(progress=SimpleNamespace(runId="run", sources=[*strangers, source]))


def committed(address: str, group: str) -> int:
    found = administer(address, lambda admin: admin.list_offsets(group))
    return sum(offset.offset for offset in found.values())


def test_a_batch_is_committed_before_the_next_is_planned(address: str) -> None:
    prepare(address, {"t": 2}, {"t": 100})
    listener = GroupCommits()
    with_group = Query(address, subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger="60", group_id="prompt")
    with_group.batch()
    assert committed(address, "prompt") == 0
    listener.onQueryProgress(progress(with_group))
    assert 58 <= committed(address, "prompt") <= 62
    with_group.batch()
    listener.onQueryProgress(progress(with_group))
    assert committed(address, "prompt") == 100
    listener.onQueryTerminated(SimpleNamespace(runId="run"))
    with_group.reader.stop()
    without = Query(address, subscribe="t", startingOffsets="earliest")
    without.batch()
    listener.onQueryProgress(progress(without))
    without.reader.stop()


def test_what_spark_tells_late_moves_no_offset_back(address: str) -> None:
    prepare(address, {"late": 2}, {"late": 100})
    query = Query(address, subscribe="late", startingOffsets="earliest", maxOffsetsPerTrigger="60", group_id="late")
    query.batch()
    late = progress(query)
    query.batch()
    query.plan()
    assert committed(address, "late") == 100
    GroupCommits().onQueryProgress(late)
    assert committed(address, "late") == 100
    query.reader.stop()


def test_an_offset_that_was_moved_back_all_the_same_is_set_right_when_the_query_ends(address: str) -> None:
    prepare(address, {"between": 1}, {"between": 100})
    query = Query(address, subscribe="between", startingOffsets="earliest", group_id="between")
    query.batch()
    query.plan()
    owner = Owner.of(query.reader.reportLatestOffset() or {})
    assert owner is not None
    request = OffsetCommitRequest(
        owner.group_id,
        owner.generation,
        owner.member_id,
        INSTANCE_ID,
        offset_commit_topics({TopicPartition("between", 0): 60}),
    )
    until = Until(5_000)
    cluster = BlockingCluster(ConnectionOptions(address, "late", 5_000))
    cluster.connection_to_coordinator("between", until).call(request, OffsetCommitResponse, until)
    cluster.close()
    assert committed(address, "between") == 60
    query.reader.stop()
    assert committed(address, "between") == 100


def test_a_query_that_has_been_fenced_commits_nothing_by_this_way_either(address: str) -> None:
    prepare(address, {"fenced": 1}, {"fenced": 100})
    first = Query(address, subscribe="fenced", startingOffsets="earliest", group_id="fenced")
    first.batch()
    told = progress(first)
    second = Query(address, subscribe="fenced", startingOffsets="earliest", group_id="fenced")
    second.plan()
    GroupCommits().onQueryProgress(told)
    assert committed(address, "fenced") == 0
    owner = Owner.of(json.loads(told.progress.sources[-1].latestOffset))
    assert owner is not None
    with pytest.raises(FencedInstanceIdError):
        commit(owner, {TopicPartition("fenced", 0): 100})
    first.reader.stop()
    second.reader.stop()


def test_a_daemon_that_is_gone_holds_up_no_other_listener(address: str) -> None:
    """It is asked once, and again when a while has passed: Spark tells its listeners one thing after the other."""
    prepare(address, {"away": 1}, {"away": 10})
    query = Query(address, subscribe="away", startingOffsets="earliest", group_id="away")
    query.batch()
    told = progress(query)
    now = [0.0]
    listener = GroupCommits(clock=lambda: now[0])
    with silent_server() as (silent, times_asked):
        source = told.progress.sources[-1]
        reported = json.loads(source.latestOffset)
        owner = Owner.of(reported)
        assert owner is not None
        away = SimpleNamespace(
            endOffset=source.endOffset,
            latestOffset=json.dumps(
                owner._replace(bootstrap_servers=silent, request_timeout_ms=500).reported(reported)
            ),
        )
        told_of_silent = SimpleNamespace(progress=SimpleNamespace(runId="other", sources=[away]))
        listener.onQueryProgress(told_of_silent)
        first = times_asked()
        assert first > 0
        for _ in range(30):
            listener.onQueryProgress(told_of_silent)
        assert times_asked() == first
        listener.onQueryProgress(told)
        assert committed(address, "away") == 10, "that one daemon is away is nothing to others"
        now[0] += 60
        listener.onQueryProgress(told_of_silent)
        again = times_asked()
        assert again > first
        listener.onQueryTerminated(SimpleNamespace(runId="other"))
        assert times_asked() == again
    query.reader.stop()


@contextmanager
def silent_server() -> Iterator[tuple[str, Callable[[], int]]]:
    """Takes connections and answers nothing: its address, and what tells how many there were."""
    taken: list[socket] = []

    def take() -> None:
        with suppress(OSError):
            while True:
                taken.append(server.accept()[0])

    def count() -> int:
        """Connections are taken in their order: when this one is, all before are."""
        with create_connection(server.getsockname()) as last:
            while last.getsockname() not in [each.getpeername() for each in list(taken)]:
                sleep(0.01)
        ours.append(1)
        return len(taken) - len(ours)

    ours: list[int] = []
    with create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", count
        finally:
            server.shutdown(SHUT_RDWR)
            thread.join(60)
            for connection in taken:
                connection.close()
