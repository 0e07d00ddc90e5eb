"""The programs of the nodes: the real daemon on a simulated disk, started again by a supervisor, and told to stop."""

from __future__ import annotations

import errno

from coordinator.config import Settings
from coordinator.daemon import Daemon, Origins
from coordinator.metadata.encoding import MetadataDamagedError
from tests.simulation.disk import SimStorage
from tests.simulation.plan import Plan
from tests.simulation.world import PORT, HostProcess, Node, World


def settings(plan: Plan, host: str) -> Settings:
    """The daemon of a history: everything small, so that segments roll and logs are compacted."""
    return Settings(
        host=host,
        port=PORT,
        segment_bytes=plan.segment_bytes,
        offsets_segment_bytes=plan.segment_bytes,
        transactions_segment_bytes=plan.segment_bytes,
        compaction_interval_ms=plan.compaction_ms,
        checkpoint_interval_ms=plan.checkpoint_ms,
        group_max_size=plan.group_max_size,
        initial_rebalance_delay_ms=plan.initial_delay_ms,
        offsets_retention_ms=plan.retention_ms,
        offsets_retention_check_interval_ms=plan.expiry_ms,
        max_in_flight=plan.max_in_flight,
        retention_ms=-1,
        retention_check_interval_ms=700,
        producer_id_expiration_ms=2**53,  # a wall clock that leaps must not make the daemon forget
        drain_timeout_ms=2_000,
    ).check()


async def daemon_program(world: World, process: HostProcess) -> None:
    """Runs the real daemon for as long as it can, as ``python -m coordinator`` does, and again after each end."""
    node = process.node
    assert node is not None
    boot_id = node.boot_id()
    origins = Origins(lambda: world.wall_ms(node), world.new_id, lambda: boot_id, lambda: world.boot_ms(node))
    daemon = Daemon(settings(world.plan, node.name), SimStorage(node.disk, process), origins)
    process.daemon = daemon
    try:
        await daemon.start()
    except MetadataDamagedError as error:
        world.history.unexpected.append(f"the metadata is damaged: {error}")
        raise
    except OSError as error:
        world.history.say(node.name, f"cannot start: {error}")
        if error.errno == errno.ENOSPC and node.has_served:
            world.history.not_started.append(f"at {world.loop.time():.3f} s the daemon did not start: {error}")
        _exit(world, node)
        return
    node.daemon = daemon
    _look_at_cleanliness(world, node, daemon)
    node.has_served = True
    world.history.say(node.name, "serves")
    reason = await daemon.failed
    world.history.say(node.name, f"ends itself: {reason}")
    _exit(world, node)


def _look_at_cleanliness(world: World, node: Node, daemon: Daemon) -> None:
    """A start has all that was acknowledged, as that is synced, unless the disk failed, is damaged or refused to note it."""
    assert daemon.cleanliness is not None
    harmed = node.disk.errors or node.disk.refused or world.history.damaged
    if daemon.cleanliness.reason and node.has_served and not harmed:
        world.history.unclean.append(f"at {world.loop.time():.3f} s a start says: {daemon.cleanliness.reason}")


def _exit(world: World, node: Node) -> None:
    """``os._exit``: nothing is drained; the supervisor starts it again."""
    world.kill(node.name)
    name = "supervisor" if world.plan.nodes == 1 else f"supervisor/{node.name}"
    delay_s = 0.1 + world.stream(name).random()
    world.later(delay_s, lambda: world.start(node.name))


async def stop_daemon(world: World, process: HostProcess, daemon: Daemon) -> None:
    """SIGTERM."""
    world.history.say(process.host, "is told to stop")
    await daemon.stop()
    world.history.say(process.host, "stopped")
    world.kill(process.host)
