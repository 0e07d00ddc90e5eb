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
from tests.simulation.world import PORT, HostProcess, World

PRODUCING: Final = ("producer", "plain", "bursting", "cancelling", "keeper", "transactor", "transformer")
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

    def _deliver(self, sender: SimTransport, frame: bytes) -> None:
        """By the connection it was sent in, behind what was sent since, or by a way of its own."""
        if not sender.lost and not sender.process.dead and self._random.random() < 0.6:
            sender.outgoing.write(frame)
            return
        self._strays += 1
        process = HostProcess(self._world, "stray", self._strays)
        self._world.processes.append(process)
        self._world.loop.spawn(process, _bring(self._world, sender.outgoing.target.process.host, frame))


async def _bring(world: World, host: str, frame: bytes) -> None:
    """What a dead connection had in its buffers arrives all the same."""
    with suppress(OSError):
        transport, _ = await world.loop.create_connection(asyncio.Protocol, host, PORT)
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
