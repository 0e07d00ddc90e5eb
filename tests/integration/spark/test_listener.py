"""Commits in the name of a query as soon as Spark says that a batch is complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
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


def test_a_daemon_that_is_gone_holds_up_no_other_listener(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        prepare(daemon.address, {"t": 1}, {"t": 10})
        query = Query(daemon.address, subscribe="t", startingOffsets="earliest", group_id="g", request_timeout_ms="500")
        query.batch()
        told = progress(query)
    GroupCommits().onQueryProgress(told)  # returns, and the suite has a bound
    query.reader.stop()
