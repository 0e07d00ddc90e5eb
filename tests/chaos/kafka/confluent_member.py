"""A member process of the chaos run that is confluent-kafka's consumer: it writes down what it was given and committed.

Commands, one a line on its stdin: ``subscribe TOPIC...``. The end of stdin means that it leaves. It writes down as
``tests.chaos.member`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import queue
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import confluent_kafka

from tests.chaos.ledger import Ledger
from tests.chaos.member import COMMIT_MODES, SESSION_TIMEOUT_MS, STATIC_SESSION_TIMEOUT_MS
from tests.chaos.worker_process import arguments, commands, run

_POLLS: Final = 40
_GENERATION_AT: Final = len("CGMDv2:")
"""Where the generation lies in the opaque metadata of a group, 4 bytes of this machine's order."""


def name_of(tp: Any) -> str:
    """A partition as it stands in ledgers."""
    return f"{tp.topic}-{tp.partition}"


class ConfluentMember:
    """A consumer in a thread, which librdkafka's calls block; this loop hears the commands."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._ledger = Ledger(options.ledger)
        self._topics: list[str] = options.topics.split(",")
        self._commands: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._uncommitted: dict[tuple[str, int], int] = {}
        self._numbers = itertools.count()
        self._consumer = confluent_kafka.Consumer(self._settings())

    def _settings(self) -> dict[str, object]:
        options = self._options
        static = {} if options.instance is None else {"group.instance.id": options.instance}
        return {
            "bootstrap.servers": options.bootstrap,
            "client.id": options.name,
            "group.id": options.group,
            "partition.assignment.strategy": options.assignors,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": options.commits == "auto",
            "enable.auto.offset.store": False,  # a record is committed once it was written down, not as it is handed out
            "auto.commit.interval.ms": 700,
            "session.timeout.ms": STATIC_SESSION_TIMEOUT_MS if static else SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 800,
            "max.poll.interval.ms": 20_000,
            "socket.timeout.ms": 4_000,
            "topic.metadata.refresh.interval.ms": 1_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **static,
        }

    async def run(self) -> int:
        """Works until it is told to leave."""
        obeying = asyncio.create_task(self._obey())
        try:
            await asyncio.to_thread(self._work)
        finally:
            obeying.cancel()
        return 0

    async def _obey(self) -> None:
        async for line in commands():
            self._commands.put(line.split())
        self._commands.put(["leave"])

    def _work(self) -> None:
        self._ledger.write("started", mode=self._options.commits, assignors=self._options.assignors)
        self._subscribe(self._topics)
        try:
            while self._obeyed():
                self._poll()
                self._commit()
        finally:
            self._consumer.close()
            self._ledger.write("left")

    def _obeyed(self) -> bool:
        """Does as it was told; whether it goes on."""
        while not self._commands.empty():
            match self._commands.get():
                case ["subscribe", *topics]:
                    self._subscribe(topics)
                case _:
                    return False
        return True

    def _subscribe(self, topics: Sequence[str]) -> None:
        self._topics = list(topics)
        self._ledger.write("subscription", topics=self._topics)
        self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def _poll(self) -> None:
        """Takes what is there, one by one, as ownership may change between them."""
        for number in range(_POLLS):
            message = self._consumer.poll(0.2 if number == 0 else 0)
            if message is None:
                break
            error = message.error()
            if error is not None:
                self._ledger.write("error", what="poll", error=error.name(), text=error.str())
                if error.code() == confluent_kafka.KafkaError._FATAL:
                    self._begin_anew()
                break
            self._delivered(message)

    def _begin_anew(self) -> None:
        """As its operator would start the program again.

        A static member whose JoinGroup was answered while it was cut off commits with the member id from before, which its
        own later one has fenced: librdkafka works no more.
        """
        self._consumer.close()
        self._consumer = confluent_kafka.Consumer(self._settings())
        self._subscribe(self._topics)

    def _delivered(self, message: Any) -> None:
        key, offset = (message.topic(), message.partition()), message.offset()
        self._ledger.write("delivered", tp=f"{key[0]}-{key[1]}", offsets=[offset], values=[message.value().decode()])
        if self._options.commits == "auto":
            self._ledger.write("done")
            self._consumer.store_offsets(message)
            return
        self._uncommitted[key] = offset + 1
        if self._options.commits == "record":
            self._commit()

    def _commit(self) -> None:
        """Commits what it has written down; what was refused is tried again as long as its partition is this member's."""
        if not self._uncommitted:
            return
        number, portion = next(self._numbers), dict(self._uncommitted)
        offsets = [confluent_kafka.TopicPartition(topic, index, offset) for (topic, index), offset in portion.items()]
        self._ledger.write("commit", number=number, offsets={name_of(each): each.offset for each in offsets})
        try:
            answered = self._consumer.commit(offsets=offsets, asynchronous=False)
            refused = [each.error for each in answered if each.error is not None]
        except confluent_kafka.KafkaException as error:
            refused = [error.args[0]]
        if refused:
            self._ledger.write("commit-failed", number=number, error=refused[0].name(), text=refused[0].str())
            time.sleep(0.1)
            return
        self._ledger.write("committed", number=number)
        self._uncommitted = {key: offset for key, offset in self._uncommitted.items() if portion.get(key) != offset}

    def _assigned(self, consumer: Any, tps: Sequence[Any]) -> None:
        metadata: bytes = consumer.consumer_group_metadata()
        generation = int.from_bytes(metadata[_GENERATION_AT : _GENERATION_AT + 4], sys.byteorder, signed=True)
        self._ledger.write("assigned", generation=generation, tps=sorted(map(name_of, tps)))

    def _revoked(self, consumer: Any, tps: Sequence[Any]) -> None:
        """Commits what is done before others go on from there."""
        self._ledger.write("revoked", tps=sorted(map(name_of, tps)))
        self._commit()
        self._forget(tps)

    def _lost(self, consumer: Any, tps: Sequence[Any]) -> None:
        self._ledger.write("lost", tps=sorted(map(name_of, tps)))
        self._forget(tps)

    def _forget(self, tps: Sequence[Any]) -> None:
        for tp in tps:
            self._uncommitted.pop((tp.topic, tp.partition), None)


def main() -> int:
    """Entry point of the process."""
    parser = arguments("tests.chaos.kafka.confluent_member", __doc__, "group", "topics", "assignors")
    parser.add_argument("--instance")
    parser.add_argument("--commits", required=True, choices=COMMIT_MODES)
    return run(parser, ConfluentMember)


if __name__ == "__main__":
    sys.exit(main())
