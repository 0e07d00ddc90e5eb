"""One member of ``cohort demo --exactly-once``, a process of its own: makes of each line a record that says its words.

With ``--transactional-id`` what its handler returns is committed together with the offsets; without, the handler sends it,
waits for the acknowledgement, and the offset is committed later: at least once.

Reads commands from stdin, one a line: ``go`` (begin), ``halt N`` (stop dead when N records are handled, in the middle of
what is not committed; for the member that is going to be killed), ``stop`` (leave the group). The end of stdin means
``stop`` too. Reports events on stdout, one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from typing import Final

from client.consumer import Consumer
from client.consumer.rebalance_listener import RebalanceListener
from client.demo.counting import output_of
from client.demo.member import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS, member_parser, report, run_member
from client.producer.producer import Producer
from client.types.records import ConsumerRecord, Output, TopicPartition

COMMIT_INTERVAL_MS: Final = 200
_UNTIL_STORED_S: Final = 0.05
"""The member that is to be killed halts when what it has queued is in the log: what is stored has to be taken back."""
_STOP_TIMEOUT_S: Final = 10.0


class TransformingMember(RebalanceListener):
    """A consumer and a producer, exactly once or at least once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._exactly_once = options.transactional_id is not None
        self._consumer = Consumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            client_id=options.name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_INTERVAL_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        )
        self._producer = Producer(
            options.bootstrap, options.name, transactional_id=options.transactional_id, transaction_timeout_ms=5_000
        )
        self._topic: str = options.topic
        self._outputs: str = options.outputs
        self._may_go = False
        self._halt_at: int | None = None
        self._stopping = asyncio.Event()
        self._handled = 0

    async def run(self) -> int:
        """Works until it is told to stop."""
        commands = asyncio.create_task(self._obey())
        self._consumer.subscribe(topics=[self._topic], listener=self)
        try:
            async with self._producer:
                await self._consumer.start()
                processing = asyncio.create_task(self._process())
                stopping = asyncio.create_task(self._stopping.wait())
                await asyncio.wait({processing, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if processing.done():
                    await processing
                await self._consumer.stop(timeout=_STOP_TIMEOUT_S)
                await processing
        finally:
            commands.cancel()
            await self._consumer.stop(timeout=_STOP_TIMEOUT_S)
        return 0

    async def _process(self) -> None:
        if self._exactly_once:
            await self._consumer.process(
                self._transform, producer=self._producer, commit_interval_ms=COMMIT_INTERVAL_MS
            )
        else:
            await self._consumer.process(self._send)

    async def _transform(self, record: ConsumerRecord) -> Output:
        await self._note()
        return output_of(record, self._outputs)

    async def _send(self, record: ConsumerRecord) -> None:
        output = output_of(record, self._outputs)
        await self._producer.send_and_wait(output.topic, output.value, output.key)
        await self._note()

    async def _note(self) -> None:
        """Counts, and stops dead in the middle when it is told to: no commit follows."""
        self._handled += 1
        if self._handled == self._halt_at:
            await asyncio.sleep(_UNTIL_STORED_S)
            report("halted", processed=self._handled)
            threading.Event().wait()  # until it is killed: the event loop goes no further

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> None:
        """Reports what this member owns; it waits for the command to go before it reads."""
        if not self._may_go:
            self._consumer.pause(*tps)
        partitions = sorted(partition.partition for partition in tps)
        report("assigned", generation=self._consumer.group_metadata().generation, partitions=partitions, reason=reason)

    async def _obey(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            match line.decode().split():
                case ["go"]:
                    self._may_go = True
                    self._consumer.resume(*self._consumer.paused())
                case ["halt", handled]:
                    self._halt_at = int(handled)
                case _:
                    break
        self._stopping.set()


def main() -> int:
    """Entry point of the process."""
    parser = member_parser("client.demo.transforming_member", __doc__)
    parser.add_argument("--outputs", required=True)
    parser.add_argument("--transactional-id")
    return run_member(TransformingMember, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
