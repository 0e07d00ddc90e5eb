"""Orders of end markers, however large, leave the loop to others after a bounded number of markers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from coordinator import marker_delivery
from coordinator.marker_delivery import HANDED_PER_TURN, MarkerDelivery
from coordinator.runtime.markers import End, EndMarkers, MarkerReport
from coordinator.runtime.participants import ParticipantKey
from coordinator.transactions.orders import MarkerPartition, WriteMarkers
from tests.coordinator.transaction_node import TransactionNode, transaction_node


class Counted(EndMarkers):
    """Notes what is handed over in each turn of the loop, and refuses it while it is told to."""

    def __init__(self, there: TransactionNode) -> None:
        super().__init__(there.catalog, there.logs, there.groups, there.transactions.admission, lambda: 0)
        self.turns: list[list[tuple[ParticipantKey, int]]] = [[]]
        self.refuses = False

    def write(self, key: ParticipantKey, ends: Sequence[End], coordinator_epoch: int, report: MarkerReport) -> None:
        self.turns[-1].append((key, ends[0][0]))
        if self.refuses:
            asyncio.get_running_loop().call_soon(report.refused, "the disk is full")
        else:
            super().write(key, ends, coordinator_epoch, report)

    async def until_quiet(self) -> None:
        """Goes on turn by turn until nothing has been handed over in ten of them."""
        while len(self.turns) < 12 or any(self.turns[-10:]):
            self.turns.append([])
            await asyncio.sleep(0)

    @property
    def handed(self) -> list[tuple[ParticipantKey, int]]:
        return [each for turn in self.turns for each in turn]


def order(number: int, partitions: int, writers: int = 1) -> WriteMarkers:
    wrote = range(number, number + writers)
    places = {MarkerPartition("a", f"id-{number}", partition): wrote for partition in range(partitions)}
    return WriteMarkers(f"t-{number}", number, 0, dict.fromkeys(wrote, True), places)


@asynccontextmanager
async def delivering(tmp_path: Path) -> AsyncIterator[tuple[Counted, Callable[[WriteMarkers], None]]]:
    """A node with one producer: what is handed over there, and how to carry out an order."""
    async with transaction_node(tmp_path) as there:
        await there.init()
        counted = Counted(there)
        delivery = MarkerDelivery(counted)
        yield counted, partial(delivery.carry_out, there.shard())
        delivery.close()


async def test_an_order_over_ten_thousand_partitions_takes_turns_with_others(tmp_path: Path) -> None:
    async with delivering(tmp_path) as (counted, carry_out):
        carry_out(order(1, 10_000))
        for number in range(2, 12):
            carry_out(order(number, 3))
        await counted.until_quiet()
        assert len(counted.handed) == len(set(counted.handed)) == 10_030
        assert max(map(len, counted.turns)) <= HANDED_PER_TURN
        first_turns = {number for turn in counted.turns[:3] for _, number in turn}
        assert first_turns == set(range(1, 12)), "small orders do not wait for the large one"


async def test_a_small_order_is_handed_over_in_the_turn_of_its_decision(tmp_path: Path) -> None:
    async with delivering(tmp_path) as (counted, carry_out):
        for number in range(3):
            carry_out(order(number, 5))
        assert len(counted.handed) == 15


async def test_partitions_with_many_writers_take_more_of_a_turn(tmp_path: Path) -> None:
    async with delivering(tmp_path) as (counted, carry_out):
        carry_out(order(1, 100, writers=10_000))
        await counted.until_quiet()
        assert len(counted.handed) == 100
        assert max(map(len, counted.turns)) <= 2, "ten thousand ends take some ms to make"


async def test_what_waits_for_one_partition_comes_again_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marker_delivery, "RETRY_S", 0.001)
    async with delivering(tmp_path) as (counted, carry_out):
        counted.refuses = True
        for number in range(2_000):
            place = MarkerPartition("a", "id", 0)
            carry_out(replace(order(number, 0), writers={place: [number]}))
        for _ in range(50):
            await asyncio.sleep(0)
        counted.refuses, counted.turns = False, [[]]
        async with asyncio.timeout(20):
            while len({number for _, number in counted.handed}) < 2_000:
                counted.turns.append([])
                await asyncio.sleep(0)
        assert max(map(len, counted.turns)) <= HANDED_PER_TURN
