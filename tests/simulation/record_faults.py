"""What goes wrong with requests that carry records: they come late, twice or never, and answers are lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import msgpack

from protocol.messages import ApiKey
from tests.simulation.network import SimTransport
from tests.simulation.registry import fault
from tests.simulation.world import KAFKA_PORT, PORT, HostProcess, World

PRODUCING: Final = (
    "producer",
    "plain",
    "bursting",
    "cancelling",
    "keeper",
    "transactor",
    "transformer",
    "kafka-producer",
    "kafka-transactor",
    "kafka-transformer",
)
"""How the hosts of producers are called."""
_ASTRAY: Final = (ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)
"""What of theirs comes late, twice or never."""
_OWN_IDS: Final = 2**40
"""Correlation ids of repetitions, whose answers nobody waits for."""
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Malice:
    """Shares, 0 to 1, of requests that come late (behind the next ones, perhaps by another way), twice or never,
    and of their answers that are lost."""

    late: float = 0.0
    twice: float = 0.0
    never: float = 0.0
    answer_lost: float = 0.0


class Meddler:
    """Looks at everything that is sent, and does to the frames of some hosts what their malice says."""

    def __init__(self, world: World) -> None:
        self.malice: dict[str, Malice] = {}
        self._world = world
        self._random = world.stream("meddler")
        self._produces: dict[tuple[int, int], None] = {}
        self._strays = 0

    def __call__(self, sender: SimTransport, data: bytes) -> bool:
        """Whether the data is taken out of its connection."""
        receiver = sender.outgoing.target
        if sender.get_extra_info("peername")[1] == KAFKA_PORT:
            return self._kafka_request(self.malice.get(sender.process.host), sender, data)
        if sender.get_extra_info("sockname")[1] == KAFKA_PORT:
            return self._kafka_answer(self.malice.get(receiver.process.host), sender)
        if (malice := self.malice.get(sender.process.host)) is not None and self._is_node(receiver):
            return self._request(malice, sender, data)
        if (malice := self.malice.get(receiver.process.host)) is not None and self._is_node(sender):
            correlation_id: Any = msgpack.unpackb(data[_LENGTH_BYTES:])[0]
            carried = self._produces.pop((self._world.serial_of(receiver), correlation_id), 0) is None
            return carried and self._happens(malice.answer_lost)
        return False

    def _is_node(self, end: SimTransport) -> bool:
        return self._world.node(end.process.host) is not None

    def _happens(self, share: float) -> bool:
        return self._random.random() < share

    def _request(self, malice: Malice, sender: SimTransport, frame: bytes) -> bool:
        fields = msgpack.unpackb(frame[_LENGTH_BYTES:])
        if fields[0] not in _ASTRAY:
            return False
        world = self._world
        self._produces[world.serial_of(sender), fields[2]] = None
        if self._happens(malice.never):
            return True
        delay_s = self._random.random() ** 2 * 4.0
        if self._happens(malice.late):
            world.later(delay_s, lambda: self._deliver(sender, frame))
            return True
        if self._happens(malice.twice):
            world.history.retried[sender.process.name] = None
            content = msgpack.packb([*fields[:2], _OWN_IDS, *fields[3:]])
            again = len(content).to_bytes(_LENGTH_BYTES, "big") + content
            world.later(delay_s / 4, lambda: self._deliver(sender, again))
        return False

    def _kafka_request(self, malice: Malice | None, sender: SimTransport, frame: bytes) -> bool:
        """Kafka's answers come in the order of the requests, so nothing is late or lost but with its connection.

        That breaks, and what was on its way in it may arrive all the same.
        """
        api_key = int.from_bytes(frame[_LENGTH_BYTES : _LENGTH_BYTES + 2])
        if malice is None or api_key not in _ASTRAY:
            return False
        if self._happens(malice.never):
            self._break_off(sender)
            return True
        delay_s = self._random.random() ** 2 * 4.0
        if self._happens(malice.late):
            self._break_off(sender)
            self._world.later(delay_s, lambda: self._bring_apart(sender, frame, KAFKA_PORT))
            return True
        if self._happens(malice.twice):
            self._world.history.retried[sender.process.name] = None
            self._world.later(delay_s / 4, lambda: self._bring_apart(sender, frame, KAFKA_PORT))
        return False

    def _kafka_answer(self, malice: Malice | None, sender: SimTransport) -> bool:
        """An answer is lost with its connection, and with those that were to come behind it."""
        if malice is None or not self._happens(malice.answer_lost / 4):
            return False
        self._break_off(sender)
        return True

    def _break_off(self, end: SimTransport) -> None:
        """Both ends hear of it, each at its own time."""
        for each in (end, end.outgoing.target):
            each.outgoing.break_off()
            each.lose_later(ConnectionResetError("connection reset"), self._world.network.latency(each.process.host))

    def _deliver(self, sender: SimTransport, frame: bytes) -> None:
        """By the connection it was sent in, behind what was sent since, or by a way of its own."""
        if not sender.lost and not sender.process.dead and self._random.random() < 0.6:
            sender.outgoing.write(frame)
            return
        self._bring_apart(sender, frame, PORT)

    def _bring_apart(self, sender: SimTransport, frame: bytes, port: int) -> None:
        """By a way of its own, whatever became of the connection."""
        self._strays += 1
        process = HostProcess(self._world, "stray", self._strays)
        self._world.processes.append(process)
        self._world.loop.spawn(process, _bring(self._world, sender.outgoing.target.process.host, port, frame))


async def _bring(world: World, host: str, port: int, frame: bytes) -> None:
    """What a dead connection had in its buffers arrives all the same."""
    with suppress(OSError):
        transport, _ = await world.loop.create_connection(asyncio.Protocol, host, port)
        transport.write(frame)
        await asyncio.sleep(5.0)
        transport.close()


def drawn(random: Random) -> Malice:
    """Some of it, more or less."""
    shares = [random.choice((0.0, 0.1, 0.4)) for _ in range(4)]
    return Malice(late=shares[0], twice=shares[1], never=shares[2] / 2, answer_lost=shares[3])


@fault
async def requests_go_astray(world: World) -> None:
    """The records of a producer come late, twice or never, or their answers get lost."""
    random = world.fault_random
    names = [name for name in world.clients() if name.startswith(PRODUCING)]
    if not names:
        return
    name = names[int(random.random() * len(names))]
    if not isinstance(world.network.meddle, Meddler):
        world.network.meddle = Meddler(world)
    meddler = world.network.meddle
    meddler.malice[name] = drawn(random)
    world.history.say(name, f"has a hostile network: {meddler.malice[name]}")
    await asyncio.sleep(0.5 + random.random() * 5)
    meddler.malice.pop(name, None)
