"""Metadata answers: what they say, what they list when only changes are asked for, and that nothing is described twice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from itertools import zip_longest
from pathlib import Path

import pytest

from coordinator.config import Settings
from coordinator.filesystem.executor import Disk
from coordinator.filesystem.files import FileStorage
from coordinator.metadata.authority import Put
from coordinator.metadata.catalog import Catalog, Topic
from coordinator.metadata.local import LocalMetadataStore
from coordinator.metadata.watchers import Changes
from coordinator.nodes.membership import Standalone
from coordinator.server import metadata_answers
from coordinator.server.dispatch import Tasks, WireCall
from coordinator.server.errors_within import errors_within
from coordinator.server.handlers.metadata import AdvertisedAddress, MetadataHandler
from coordinator.server.metadata_answers import MetadataAnswers, Packed
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import RequestFrame, unpack
from protocol.messages.cluster import BrokerMetadata, MetadataRequest, MetadataResponse
from tests.coordinator.server.test_sharing import Owner, connected


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    disk = Disk(FileStorage(tmp_path), threads=1)
    store = await LocalMetadataStore.open(disk, lambda: "c", lambda reason: None)
    ids = iter(f"id{number}" for number in range(10_000))
    yield Catalog(
        store, 0, lambda: next(ids), max_partitions=100_000, max_partitions_per_topic=100_000,
        config_defaults=Settings().topic_defaults,
    )  # fmt: skip
    disk.close()


async def create(catalog: Catalog, name: str, partitions: int = 1) -> None:
    await catalog.commit(catalog.draft(name, partitions, {}))


def answer(answers: MetadataAnswers, request: MetadataRequest) -> tuple[MetadataResponse, int]:
    """The answer, and in how many steps it was made."""
    *steps, parts = answers.make(request, "h", 1)
    assert set(steps) <= {None}
    assert parts is not None
    head, body, errors = parts
    response = decode_message(MetadataResponse, unpack(head + body))
    assert errors == errors_within(response)
    return response, 1 + len(steps)


def names(response: MetadataResponse) -> dict[str, int]:
    return {topic.name: topic.error_code for topic in response.topics}


async def test_all_topics_and_named_ones_are_described(catalog: Catalog) -> None:
    await create(catalog, "b", 3)
    await create(catalog, "a")
    answers = MetadataAnswers(catalog)
    everything, _ = answer(answers, MetadataRequest(None))
    assert (everything.revision, everything.cluster_id, everything.since_revision) == (catalog.revision, "c", -1)
    assert everything.brokers == (BrokerMetadata(0, "h", 1),)
    assert names(everything) == {"a": 0, "b": 0}
    described = everything.topics[1]
    assert [entry.partition_index for entry in described.partitions] == [0, 1, 2]
    assert (described.topic_id, described.partitions[0].leader_id, described.partitions[0].isr_nodes) == (
        "id0",
        0,
        (0,),
    )
    some, _ = answer(answers, MetadataRequest(("b", "nope", "b", "a/b")))
    assert names(some) == {
        "b": 0, "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }  # fmt: skip
    assert some.topics[0] == described


async def test_only_changes_are_listed_for_who_takes_them(catalog: Catalog) -> None:
    for name in ("a", "b", "c"):
        await create(catalog, name)
    answers, known = MetadataAnswers(catalog), catalog.revision
    asked = MetadataRequest(None, known, 1000, accepts_changes=True)
    assert not answers.is_news(asked)
    await create(catalog, "d")
    await catalog.begin_deletion(catalog.topic("b"))
    assert answers.is_news(asked)
    changes, _ = answer(answers, asked)
    assert names(changes) == {"b": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "d": ErrorCode.NONE}
    assert changes.since_revision == known
    assert names(answer(answers, MetadataRequest(None, known, 1000))[0]) == {"a": 0, "c": 0, "d": 0}
    of_a = MetadataRequest(("a", "x"), known, 1000, accepts_changes=True)
    assert not answers.is_news(of_a)
    assert names(answer(answers, of_a)[0]) == {}


async def test_changes_of_no_topic_are_no_news(catalog: Catalog) -> None:
    await create(catalog, "a")
    known = catalog.revision
    await catalog._store.transaction([], [Put("producer-ids", {"next": 1})])
    assert catalog.revision > known
    assert not MetadataAnswers(catalog).is_news(MetadataRequest(None, known, 1000))


async def test_who_knows_more_than_there_is_or_too_little_gets_all(catalog: Catalog) -> None:
    await create(catalog, "a")
    for known in (-1, catalog.revision + 1):
        request = MetadataRequest(None, known, 1000, accepts_changes=True)
        answers = MetadataAnswers(catalog)
        assert answers.is_news(request)
        everything, _ = answer(answers, request)
        assert (names(everything), everything.since_revision) == ({"a": 0}, -1)


async def test_a_topic_is_packed_once_while_it_stays_what_it_is(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[str] = []
    original = metadata_answers._packed

    def noted(topic: Topic) -> Packed:
        packed.append(topic.name)
        return original(topic)

    monkeypatch.setattr(metadata_answers, "_packed", noted)
    for name in ("a", "b"):
        await create(catalog, name)
    answers = MetadataAnswers(catalog)
    for _ in range(3):
        answer(answers, MetadataRequest(None))
        answer(answers, MetadataRequest(("b",)))
    assert packed == ["a", "b"]
    await catalog.commit(catalog.draft_growth(catalog.topic("b"), 2))
    everything, _ = answer(answers, MetadataRequest(None))
    assert len(everything.topics[1].partitions) == 2
    assert packed == ["a", "b", "b"]


async def test_an_answer_about_many_topics_is_made_in_steps(catalog: Catalog) -> None:
    for number in range(10):
        await create(catalog, f"t{number}", 500)
    answers = MetadataAnswers(catalog)
    everything, steps = answer(answers, MetadataRequest(None))
    assert len(everything.topics) == 10
    assert steps > 3
    assert answer(answers, MetadataRequest(None)) == (everything, 1)


def test_what_changed_long_ago_is_forgotten() -> None:
    changes = Changes(5, limit=3)
    assert changes.after(4) is None
    assert changes.after(5) == {}
    for revision, name in ((6, "a"), (8, "b"), (9, "a"), (10, "c")):
        changes.note(revision, [name])
    assert changes.after(5) is None
    assert changes.after(6) == {"c": None, "a": None, "b": None}
    assert changes.after(9) == {"c": None}
    assert changes.after(10) == {}


async def test_clients_that_ask_at_the_same_time_share_one_answer(catalog: Catalog) -> None:
    for name in ("a", "b", "c", "d"):
        await create(catalog, name, 1_000)
    answers = MetadataAnswers(catalog)
    made = zip_longest(answers.make(MetadataRequest(None), "h", 1), answers.make(MetadataRequest(None), "g", 2))
    bodies = [parts[1] for both in made for parts in both if parts is not None]
    assert len(bodies) == 2
    assert bodies[0] is bodies[1]


async def test_a_change_between_a_poll_and_its_first_step_is_not_missed(catalog: Catalog) -> None:
    """One poll begins in each turn of the loop, so that one of them does in the turn in which the change comes."""
    await create(catalog, "a")
    advertised = AdvertisedAddress("h", 1)
    handler = MetadataHandler(catalog, Tasks(), Standalone(0), advertised=advertised, max_wait_ms=600_000)
    connection, _ = connected(Owner())
    request = MetadataRequest(None, catalog.revision, 600_000)
    calls: list[WireCall] = []
    creating = asyncio.ensure_future(create(catalog, "b"))
    while not creating.done():
        calls.append(WireCall(connection, RequestFrame(3, 0, len(calls), "c", ()), request, 0))
        deque(handler.handle(calls[-1]) or (), 0)
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        while any(call.open for call in calls):
            await asyncio.sleep(0.01)
