"""What happens to groups and producers: restarts with the same name, administrators, upgrades, killed producers."""

from __future__ import annotations

import asyncio
from typing import Final

from client import Admin, CohortError
from tests.chaos.groups import ChaosGroup
from tests.chaos.registry import fault
from tests.chaos.world import World

_ADMIN_MS: Final = 20_000
"""Longer than any other fault lasts: what an administrator asks for is done, or refused, but not forgotten."""


@fault(breaks=False)
async def kill_producer(world: World, pick: float, duration_s: float) -> str:
    """SIGKILL in the middle of sending; another of its kind comes in its place later."""
    living = [producer for producer in world.producers.values() if producer.alive]
    if not living:
        return "nobody"
    producer = living[int(pick * len(living))]
    await producer.kill()
    await asyncio.sleep(duration_s)
    await world.add_producer(str(producer.options["promise"]))
    return producer.name


@fault(breaks=False, low_s=0.0, high_s=9.0)
async def restart_static(world: World, pick: float, duration_s: float) -> str:
    """A static member ends, by SIGKILL or in order, and comes back within its session or long after it."""
    member = world.picked(pick, running=True, static=True)
    if member is None:
        return "nobody"
    group = world.group_of(member)
    async with group.turn:
        if not member.alive:
            return "nobody"
        await (member.kill() if pick * 7 % 1 < 0.5 else member.leave())
        await asyncio.sleep(duration_s if duration_s > 6 else duration_s / 6)
        return f"{member.name} {(await world.start_member(group, after=member)).name}"


@fault(breaks=False)
async def double_instance(world: World, pick: float, duration_s: float) -> str:
    """A second process with the instance id of one that lives: that one is to be fenced."""
    member = world.picked(pick, static=True)
    if member is None:
        return "nobody"
    group = world.group_of(member)
    async with group.turn:
        if not member.alive:
            return "nobody"
        return f"{member.name} {(await world.start_member(group, after=member)).name}"


@fault(breaks=False)
async def remove_member(world: World, pick: float, duration_s: float) -> str:
    """An administrator takes a member out that knows nothing of it; it comes back by itself."""
    group = list(world.groups.values())[int(pick * len(world.groups))]
    try:
        async with Admin(world.address) as admin:
            members = (await admin.describe_groups(group.id, timeout_ms=5_000))[group.id].members
            if not members:
                return "nobody"
            member = members[int(pick * 997) % len(members)]
            world.ledger.write("removed", name=member.client_id)
            named = [] if member.group_instance_id is not None else [member.member_id]
            instances = [member.group_instance_id] if member.group_instance_id is not None else []
            await admin.remove_members(
                group.id, *named, group_instance_ids=instances, reason="chaos wants it", timeout_ms=5_000
            )
    except CohortError as error:
        return f"{group.id} (failed: {type(error).__name__})"
    return member.client_id


@fault(breaks=False)
async def ask_rebalance(world: World, pick: float, duration_s: float) -> str:
    """A member asks for a rebalance."""
    member = world.picked(pick, running=True)
    if member is None:
        return "nobody"
    member.command("rebalance")
    return member.name


@fault(breaks=False)
async def upgrade_group(world: World, pick: float, duration_s: float) -> str:
    """A rolling restart of one group: from eager to both, from both to cooperative (KIP-429), and back."""
    groups = [group for group in world.groups.values() if group.can_upgrade]
    if not groups:
        return "nobody"
    group = groups[int(pick * len(groups))]
    async with group.turn:
        group.upgrade()
        for member in world.living(group.id):
            if member.alive:
                await member.leave()
                await asyncio.sleep(duration_s / 3)
                await world.start_member(group, after=member)
    return f"{group.id} to stage {group.stage}"


@fault(breaks=False)
async def reset_offsets(world: World, pick: float, duration_s: float) -> str:
    """Everybody leaves a group, an administrator sets or deletes what it has committed, and everybody comes back."""
    group = list(world.groups.values())[int(pick * len(world.groups))]
    async with group.turn:
        members = world.living(group.id)
        await asyncio.gather(*(member.leave() for member in members))
        try:
            done = await _empty_and_reset(world, group, int(pick * 997) % 4)
        except CohortError as error:
            done = f"failed: {type(error).__name__}"
        await asyncio.gather(*(world.start_member(group, after=member) for member in members))
    return f"{group.id} ({done})"


async def _empty_and_reset(world: World, group: ChaosGroup, way: int) -> str:
    async with Admin(world.address) as admin:
        if (await admin.describe_groups(group.id, timeout_ms=_ADMIN_MS))[group.id].members:  # static, or killed before
            await admin.remove_members(group.id, all_members=True, reason="offsets are reset", timeout_ms=_ADMIN_MS)
        world.ledger.write("reset", group=group.id)
        try:
            if way == 0:
                await admin.reset_offsets(group.id, to="earliest", dry_run=False, timeout_ms=_ADMIN_MS)
                return "to the beginning"
            if way == 1:
                await admin.reset_offsets(group.id, shift_by=-50, dry_run=False, timeout_ms=_ADMIN_MS)
                return "50 back"
            if way == 2:
                committed = sorted(await admin.list_offsets(group.id, timeout_ms=_ADMIN_MS))
                some = [tp for tp in committed if tp.partition % 2]
                await admin.delete_offsets(group.id, *some, timeout_ms=_ADMIN_MS)
                return f"{len(some)} deleted"
            await admin.delete_groups(group.id, timeout_ms=_ADMIN_MS)
            return "group deleted"
        finally:
            world.ledger.write("reset-done", group=group.id)
