"""The programs of the nodes: the real daemon on a simulated disk, started again by a supervisor, and told to stop."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coordinator.config import Settings
from coordinator.daemon import Daemon, OpenMetadata, Origins
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.metadata.etcd.rpc import Pace
from coordinator.metadata.etcd.store import EtcdStore
from coordinator.metadata.store import MetadataStore, MetadataUnavailableError
from coordinator.nodes.cleanliness import THIS_START
from coordinator.nodes.registration import RegistrationRefusedError
from tests.simulation.cluster_probes import broker_epoch, is_noted
from tests.simulation.disk import SimStorage
from tests.simulation.etcd_members import URL, NodeEtcd
from tests.simulation.plan import Plan, has_kafka
from tests.simulation.world import KAFKA_PORT, PORT, HostProcess, Node, World

_REPLACING: Final = {"disk_is_replaced", "power_takes_a_disk_with_it"}
_TRIMMING: Final = {"keeping_little", "keeping_the_last"}
SESSION_MS: Final = 2_000
"""How long a node of several may be out of touch with etcd."""


def settings(plan: Plan, node: Node) -> Settings:
    """The daemon of a history: everything small, so that segments roll and logs are compacted."""
    alone = Settings(
        host=node.name,
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
        kafka_port=KAFKA_PORT if has_kafka(plan) else 0,
        kafka_min_session_timeout_ms=1,
        kafka_heartbeat_hold_ms=400,
    )
    if plan.nodes == 1:
        return alone.check()
    return replace(
        alone,
        # One with a new disk is the same node again: partitions wait for their replicas, not for others.
        node_id=node.index + 1 if _REPLACING & set(plan.faults) else -1,
        metadata=URL,
        node_session_ms=SESSION_MS,
        default_replication_factor=3,
        replica_lag_time_max_ms=3_000,
        controlled_shutdown_ms=4_000,
        leader_rebalance=plan.leader_rebalance,
        retention_check_interval_ms=700 if _TRIMMING & set(plan.workloads) else 10_000,
    ).check()


async def daemon_program(world: World, process: HostProcess) -> None:
    """Runs the real daemon for as long as it can, as ``python -m coordinator`` does, and again after each end."""
    node = process.node
    assert node is not None
    node.is_unnoted = node.is_unnoted or not is_noted(node)
    boot_id = node.boot_id()
    origins = Origins(lambda: world.wall_ms(node), world.new_id, lambda: boot_id, lambda: world.boot_ms(node))
    storage, wanted = SimStorage(node.disk, process), settings(world.plan, node)
    daemon = Daemon(wanted, storage, origins, open_metadata=_opener(world, node))
    process.daemon = daemon
    try:
        await daemon.start()
    except (
        MetadataUnavailableError,
        RegistrationRefusedError,
    ) as error:  # the node before it may still have its session
        world.history.say(node.name, f"cannot start: {error}")
        _exit(world, node)
        return
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


def _opener(world: World, node: Node) -> OpenMetadata | None:
    """How a node of several opens the metadata that they share."""

    async def opened(new_cluster_id: Callable[[], str], on_fatal: Callable[[str], None]) -> MetadataStore:
        return await EtcdStore.open(NodeEtcd(world.etcd, node.name, Pace()), "sim", new_cluster_id, on_fatal)

    return None if world.plan.nodes == 1 else opened


def _look_at_cleanliness(world: World, node: Node, daemon: Daemon) -> None:
    """A start has all that was acknowledged, as that is synced, unless the disk failed, is damaged or refused to note it."""
    assert daemon.cleanliness is not None
    facts, node_id = world.history.cluster, daemon.settings.node_id
    has_found_it = daemon.cleanliness.reason and node.name in facts.flipped.values()
    is_not_known = node.is_unnoted and daemon.cleanliness.clean_since == THIS_START and world.plan.nodes > 1
    if has_found_it or is_not_known:
        # The flipped bit, or that nothing says what it has: what it was in sync with before counts for no partition now.
        facts.lost_disks[node_id] = broker_epoch(world, node_id) - 1
    node.is_unnoted = False
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
