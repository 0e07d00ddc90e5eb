"""CreateTopics (19).

Topics that one request creates, and those of requests that wait at the same time, are made some at a time, with one write of
the metadata (a group commit).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, cast

from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log.errors import LogError
from coordinator.log_output import get_logger
from coordinator.metadata.catalog import Topic, TopicError, parse_topic_config
from coordinator.server.call import Call, Handler
from coordinator.server.dispatch import STEP
from coordinator.server.handlers.topic_change import (
    answer_in_batches,
    check_named_once,
    finish_deletion,
    make_partitions,
    turn,
)
from coordinator.server.node import Node
from protocol.errors import ErrorCode
from protocol.messages.topics import CreatableTopic, CreatedTopic, CreateTopicsRequest, CreateTopicsResponse

log = get_logger()

_PARTITIONS_AT_ONCE: Final = 256
"""Partitions of new topics that are made together: they share the syncs, and other changes wait no longer than for these."""


@dataclass(slots=True, eq=False)
class _Creation:
    """Topics of one request that are made together; ``results`` is set when it is known what became of them."""

    wanted: Sequence[CreatableTopic]
    names: Counter[str]
    validate_only: bool
    results: list[CreatedTopic | Exception] | None = None


def handler(node: Node) -> Handler:
    """See ``CreateTopicsHandler``."""
    return CreateTopicsHandler(node).handle


class CreateTopicsHandler:
    """Makes topics."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: list[_Creation] = []
        """Creations that have not begun, in order of arrival; as many as there are requests under way at most."""

    def handle(self, call: Call) -> None:
        """Answers when the topics are there, or say why not."""
        self._node.tasks.start_change(call, self._create_all(call))

    async def _create_all(self, call: Call) -> None:
        request = cast("CreateTopicsRequest", call.request)
        names = Counter(topic.name for topic in request.topics)

        async def create(some: Sequence[CreatableTopic], deadline: float) -> list[CreatedTopic | Exception]:
            return await self._in_turn(_Creation(some, names, request.validate_only), deadline)

        await answer_in_batches(
            self._node.tasks, call, self._batches(request.topics), request.timeout_ms, create,
            lambda wanted, code, message: CreatedTopic(wanted.name, code, message), CreateTopicsResponse,
        )  # fmt: skip

    def _count(self, wanted: CreatableTopic) -> int:
        return self._node.settings.default_partitions if wanted.num_partitions == -1 else wanted.num_partitions

    def _batches(self, wanted: Sequence[CreatableTopic]) -> Iterator[Sequence[CreatableTopic]]:
        """Cuts topics into as many as are made together."""
        some: list[CreatableTopic] = []
        partitions = 0
        for entry in wanted:
            partitions += max(1, self._count(entry))
            if some and (partitions > _PARTITIONS_AT_ONCE or len(some) == STEP):
                yield some
                some, partitions = [], max(1, self._count(entry))
            some.append(entry)
        if some:
            yield some

    async def _in_turn(self, creation: _Creation, deadline: float) -> list[CreatedTopic | Exception]:
        """Makes topics when no other change is under way, together with others that wait then; or is one of those."""
        self._waiting.append(creation)
        try:
            async with turn(self._node.catalog, creation.wanted[0].name, deadline):
                while creation.results is None:
                    await self._create_together(self._taken())
            return creation.results
        finally:
            if creation in self._waiting:
                self._waiting.remove(creation)

    def _taken(self) -> list[_Creation]:
        """Takes the first creation that waits, and of those behind it as many as may be made together with it."""
        taken: list[_Creation] = []
        names: set[str] = set()
        partitions = 0
        for creation in self._waiting:
            partitions += sum(self._count(entry) for entry in creation.wanted)
            wanted = {entry.name for entry in creation.wanted}
            if taken and (creation.validate_only or partitions > _PARTITIONS_AT_ONCE or not names.isdisjoint(wanted)):
                break
            taken.append(creation)
            names |= wanted
            if creation.validate_only:
                break
        del self._waiting[: len(taken)]
        return taken

    async def _create_together(self, creations: Sequence[_Creation]) -> None:
        try:
            await self._create(creations)
        except Exception as error:
            for creation in creations:
                creation.results = [error] * len(creation.wanted)
        finally:
            self._waiting[:0] = [each for each in creations if each.results is None]  # cancelled: the next one's task

    async def _create(self, creations: Sequence[_Creation]) -> None:
        """Makes what can be made of these topics; for each that cannot, says why."""
        drafts: dict[str, Topic] = {}
        failed: dict[str, Exception] = {}
        beside = 0
        for creation in creations:
            for entry in creation.wanted:
                try:
                    check_named_once(creation.names, entry.name)
                    draft = await self._drafted(entry, beside, tuple(drafts.values()), creation.validate_only)
                    drafts[entry.name] = draft
                except (TopicError, OSError, LogError) as error:
                    failed[entry.name] = error
                else:
                    beside += 0 if creation.validate_only else len(draft.partitions)
        if not creations[0].validate_only:
            failed |= await self._make_each(tuple(drafts.values()))
        for creation in creations:
            creation.results = [
                failed.get(entry.name) or _created(drafts[entry.name], creation.validate_only)
                for entry in creation.wanted
            ]

    async def _drafted(
        self, wanted: CreatableTopic, beside: int, drafts: Sequence[Topic], validate_only: bool
    ) -> Topic:
        partitions = self._count(wanted)
        self._node.catalog.check_new(wanted.name, partitions, wanted.replication_factor, beside)
        config = parse_topic_config({entry.name: entry.value for entry in wanted.configs})
        self._node.catalog.check_config(config)
        if self._node.cluster_topics is not None:
            return self._node.cluster_topics.draft(wanted.name, partitions, wanted.replication_factor, config, drafts)
        if not validate_only:
            for topic_id, name, count in self._node.catalog.deletions():
                if name == wanted.name:  # directories go by name: nothing of the namesake may be left
                    await finish_deletion(self._node, topic_id, name, count)
        return self._node.catalog.draft(wanted.name, partitions, config)

    async def _make_each(self, drafts: Sequence[Topic]) -> dict[str, Exception]:
        """Makes topics all at once or, if that fails, one by one: what is wrong with one must not keep the others from
        being made. Tells by name what failed."""
        try:
            if self._node.cluster_topics is not None:
                await self._node.cluster_topics.create(drafts)
            else:
                await make_partitions(
                    self._node.catalog, self._node.logs, [(topic, range(len(topic.partitions))) for topic in drafts]
                )
        except Exception as error:
            if len(drafts) == 1 or isinstance(error, WriteInDoubtError):
                return {topic.name: error for topic in drafts}
        else:
            return {}
        failed: dict[str, Exception] = {}
        for topic in drafts:
            failed |= await self._make_each([topic])
        return failed


def _created(topic: Topic, validate_only: bool) -> CreatedTopic:
    if not validate_only:
        log.info("topic_created", topic=topic.name, partitions=len(topic.partitions))
    topic_id = "" if validate_only else topic.topic_id
    return CreatedTopic(topic.name, ErrorCode.NONE, "", topic_id, len(topic.partitions))
