"""The story of a cluster: three nodes, real files through a group, and SIGKILL to the node that leads most partitions."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from client.admin import Admin
from client.cli.cluster_processes import ClusterProcess
from client.cli.failure import CommandError
from client.cli.output import Output
from client.demo.files import Lines
from client.demo.lines import files_of
from client.demo.narrator import Narrator
from client.demo.story import NAMES, PARTITIONS, TOPIC, Story, reckon
from client.errors import CohortError, TopicAlreadyExistsError
from client.producer.producer import Producer

NODES: Final = 3
SESSION_MS: Final = 2_000
_OPTIONS: Final = (
    *("--log-level", "error", "--default-replication-factor", str(NODES), "--node-session-ms", str(SESSION_MS)),
)
_READY_S: Final = 60.0
_PRODUCE_TIMEOUT_S: Final = 600.0
_SENDERS: Final = 4
_PIECES: Final = 200
"""Lines are sent in about so many calls, or the kill would come after the last."""


async def tell_on_cluster(paths: Sequence[Path], output: Output) -> int:
    """Runs the demonstration; 0 when nothing was lost and all counts agree, else 1.

    Everything it starts is gone when it returns, also after an error or Ctrl-C.
    """
    narrator = Narrator(output, asyncio.get_running_loop().time)
    with tempfile.TemporaryDirectory(prefix="cohort-demo-", ignore_cleanup_errors=True) as directory:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(ClusterProcess(Path(directory), NODES, *_OPTIONS))
            narrator.tell(
                "cluster",
                f"{NODES} nodes serve at {cluster.address}; the metadata is in {cluster.metadata}",
                address=cluster.address,
                metadata=cluster.metadata,
            )
            admin = await stack.enter_async_context(Admin(bootstrap_servers=cluster.address))
            await _create(admin, narrator)
            story = Story(narrator, cluster.address, admin, Path(directory))
            stack.push_async_callback(story.end)
            lines = Lines(files_of(paths))
            batches = list(_pieces(lines))
            await story.start_members(NAMES)
            story.release(max(1, len(batches[0][1])))
            gap_s = await _produce(cluster, admin, narrator, story, batches)
            await story.drain()
            outcome = story.counted(lines)
            rebalances = story.watch.rebalances
    return reckon(
        narrator,
        output,
        outcome,
        rebalances,
        redelivered="",
        end="A node died in the middle, nothing was lost, and the group counted what a plain count counts.",
        gap_s=gap_s,
    )


async def _create(admin: Admin, narrator: Narrator) -> None:
    try:
        async with asyncio.timeout(_READY_S):
            while True:
                try:
                    await admin.create_topics({TOPIC: PARTITIONS})
                    break
                except TopicAlreadyExistsError:
                    break  # made by a request whose answer got lost
                except CohortError:
                    await asyncio.sleep(0.2)
    except TimeoutError:
        raise CommandError(f"{NODES} nodes were not there for a topic within {_READY_S:.0f} s") from None
    narrator.tell(
        "topic",
        f"topic {TOPIC} has {PARTITIONS} partitions of {NODES} replicas each",
        topic=TOPIC,
        partitions=PARTITIONS,
        replicas=NODES,
    )


def _pieces(lines: Lines) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and values, in pieces of about the same number of lines."""
    batches = list(lines.batches())
    keys = list(itertools.chain.from_iterable(each for each, _ in batches))
    values = list(itertools.chain.from_iterable(each for _, each in batches))
    size = max(1, len(values) // _PIECES)
    for start in range(0, len(values), size):
        yield keys[start : start + size], values[start : start + size]


async def _produce(
    cluster: ClusterProcess,
    admin: Admin,
    narrator: Narrator,
    story: Story,
    batches: Sequence[tuple[list[bytes], list[bytes]]],
) -> float:
    """Sends all lines while members count them, and kills a node half way; returns the longest wait for an answer."""
    loop = asyncio.get_running_loop()
    waits: list[float] = []
    left, half = iter(batches), asyncio.Event()
    begun = 0

    async def send(producer: Producer) -> None:
        nonlocal begun
        for keys, values in left:
            begun += 1
            if begun * 2 >= len(batches):
                half.set()
            at = loop.time()
            for metadata in await producer.send_many(TOPIC, values, keys):
                story.ends[metadata.partition] = max(story.ends.get(metadata.partition, 0), metadata.offset + 1)
            waits.append(loop.time() - at)

    began = loop.time()
    try:
        async with asyncio.timeout(_PRODUCE_TIMEOUT_S), Producer(cluster.address, "demo-producer") as producer:
            senders = [asyncio.create_task(send(producer)) for _ in range(_SENDERS)]
            try:
                await half.wait()
                await _kill(cluster, admin, narrator)
                await asyncio.gather(*senders)
            finally:
                for sender in senders:
                    sender.cancel()
    except TimeoutError:
        raise CommandError(f"the files were not produced within {_PRODUCE_TIMEOUT_S:.0f} s") from None
    produced, took_s = sum(story.ends.values()), loop.time() - began
    narrator.tell(
        "produced",
        f"{produced:,} lines are acknowledged by all replicas in sync, in {took_s:.1f} s; the longest wait for an "
        f"acknowledgement was {max(waits):.2f} s",
        records=produced,
        seconds=round(took_s, 3),
        longest_wait_s=round(max(waits), 3),
    )
    return max(waits)


async def _kill(cluster: ClusterProcess, admin: Admin, narrator: Narrator) -> None:
    leaders = [each.leader for each in (await admin.describe_topics(TOPIC))[TOPIC].partitions]
    node = max((node for node in cluster.running if node != cluster.serving), key=leaders.count)
    led = leaders.count(node)
    await cluster.kill(node)
    spared = "" if cluster.serving < 0 else f" (node {cluster.serving} is spared: it has the metadata)"
    narrator.tell(
        "kill",
        f"node {node}, which leads {led} of {PARTITIONS} partitions, is killed (SIGKILL) half way{spared}",
        style="red",
        node=node,
        led=led,
    )
