"""What clients believe to own, looked at from outside when one of them acts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from client.consumer import Consumer
from client.group.member import Member
from client.types.records import ConsumerRecord
from protocol.subscription import TopicPartition
from tests.simulation.history import NO_STINT, HandedOut, Partition, name_of
from tests.simulation.world import HostProcess, World


class Owner(Protocol):
    """A client that owns partitions of a group. ``instance`` is the instance id of a static member."""

    group: str
    process: HostProcess
    instance: str | None

    @property
    def member_id(self) -> str:
        """The id that it takes for its own."""
        ...

    def believes_to_own(self, partition: Partition) -> bool:
        """Whether it would act as the owner at this moment."""
        ...


@dataclass(slots=True, eq=False)
class ConsumingOwner:
    """A consumer in a group."""

    group: str
    process: HostProcess
    consumer: Consumer
    instance: str | None = None

    @property
    def member_id(self) -> str:
        """See ``Owner``."""
        session = (
            self.consumer._coordinator.membership.session if self.consumer._coordinator.membership is not None else None
        )
        return session.member_id if session is not None else ""

    def believes_to_own(self, partition: Partition) -> bool:
        """See ``Owner``."""
        state = self.consumer._assignment.states.get(TopicPartition(*partition))
        return state is not None and not state.frozen and self.consumer._coordinator.owns()

    def hand_out(self, records: Iterable[ConsumerRecord], *, in_order: bool = True) -> None:
        """Notes what the consumer gave its program, and looks whether another takes itself for the owner.

        Records that are not given ``in_order`` belong to no stint.
        """
        world, process = self.process.world, self.process
        membership = self.consumer._coordinator.membership
        session = membership.session if membership is not None else None
        generation = session.generation if session is not None else -1
        checked: dict[Partition, int] = {}
        for record in records:
            partition = (record.topic, record.partition)
            if partition not in checked:
                state = self.consumer._assignment.states.get(TopicPartition(*partition))
                # A record that a handler gave back comes again: another epoch.
                given_back = state.epoch if state is not None and self.consumer._coordinator.work is not None else 0
                checked[partition] = world.serial_of(state) * 10_000 + given_back
                look_for_another_owner(world, self, partition)
            value = bytes(record.value or b"").decode("latin-1")
            world.history.handed_out.append(
                HandedOut(
                    world.loop.time(), self.group, process.name, generation, partition, record.offset, value,
                    checked[partition] if in_order else NO_STINT,
                )
            )  # fmt: skip


@dataclass(slots=True, eq=False)
class WorkingOwner:
    """A plain member with a share of work."""

    group: str
    process: HostProcess
    member: Member = field(init=False)
    instance: str | None = None
    shards: frozenset[Partition] = frozenset()

    @property
    def member_id(self) -> str:
        """See ``Owner``."""
        return self.member.member_id

    def give_up(self, reason: str) -> None:
        """The member's ``on_revoked``."""
        self.shards = frozenset()

    def believes_to_own(self, partition: Partition) -> bool:
        """See ``Owner``. It goes by what it was told; if it was stopped when its session ended, by the member's state."""
        session = self.member._membership.session
        if partition not in self.shards or session is None or session.ended is not None:
            return False
        over_s = min(session.latest.expires_s, session.latest.rejoin_by_s)
        was_stopped = self.process.held is not None or self.process.went_on_s >= over_s
        return not was_stopped or self.member.state != "fenced"

    def act(self) -> None:
        """Works on each shard that it takes for its own."""
        for shard in sorted(self.shards):
            if self.believes_to_own(shard):
                look_for_another_owner(self.process.world, self, shard)


def look_for_another_owner(world: World, owner: Owner, partition: Partition) -> None:
    """Notes every other live client of the group that takes itself for the owner too."""
    world.members = [other for other in world.members if not other.process.dead]
    for other in world.members:
        if other is owner or other.group != owner.group or not other.believes_to_own(partition):
            continue
        if not _may_not_know(world, owner) and not _may_not_know(world, other):
            world.history.overlaps.append(
                f"at {world.loop.time():.3f} s {owner.process.name} acts as the owner of {name_of(partition)} of "
                f"{owner.group} while {other.process.name} takes itself for the owner"
            )


def _may_not_know(world: World, owner: Owner) -> bool:
    """Whether this one has lost its place so recently that it may not have heard of it.

    The coordinator does not wait for whom an administrator removes, nor for the process before a new one with the same
    instance id (KIP-345): what they send is refused, but they hear of it with the next answer. Once their session is over by
    their own clock they have stopped in any case.
    """
    overruled_s = world.history.overruled.get(owner.member_id)
    return overruled_s is not None and world.loop.time() <= overruled_s + world.plan.session_ms / 1000
