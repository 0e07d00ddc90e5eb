"""Heartbeats like the last one of their connection, from their bytes to their answer in one pass.

Most requests of a daemon are heartbeats, and one of a stable member differs from its last in the correlation id only. The
usual way makes a payload, an envelope, a call and a pending answer of each, which takes longer than to decide it. Here none
of these is made. Whatever is not that simple takes the usual way: another request under way on the connection, a client
that does not read, a bound that is reached, a decision that is more than a timer, or one that has to wait for the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from coordinator.group_coordinator import GroupCoordinator
from coordinator.groups.core import GroupCore
from coordinator.server.native_codec import NativeCodec, carried_on
from coordinator.server.request_meter import RequestMeter
from coordinator.server.server_connection import ServerConnection

if TYPE_CHECKING:
    from coordinator.server.connection import Connection


class RepeatedHeartbeats:
    """Those of one port that speaks Cohort's own protocol. ``meter`` counts them, None where that is not asked for."""

    def __init__(self, coordinator: GroupCoordinator, meter: RequestMeter | None = None) -> None:
        self._shard_of = coordinator.shard
        self._may_answer = coordinator.replies.may_answer
        self._meter = meter

    def answer(self, connection: Connection, data: bytes) -> bool:
        """Answers ``data`` if it is such a heartbeat; False where it has to be received as anything else."""
        wire = connection.wire
        codec = cast("NativeCodec", wire.codec)
        correlation_id = codec.repeated(data)
        if correlation_id < 0 or not _has_nothing_else(wire):
            return False
        meter = self._meter
        if meter is not None and meter.until_sample <= 1:
            return False  # it is timed from its handler on
        heartbeat = codec.last_heartbeat
        group_id = heartbeat.group_id
        shard = self._shard_of(group_id)
        if shard is None or not connection.fair_queue.try_acquire(connection):
            return False
        if not shard.move_timers(GroupCore.renewed, heartbeat, connection.software) or not self._may_answer(group_id):
            connection.fair_queue.charge(-1)  # it is received as anything else, and counts then; to renew twice is one
            return False
        connection.client_id = codec.last_client_id
        connection.send([carried_on(correlation_id)])
        if meter is not None:
            meter.until_sample -= 1
            meter.carried_on += 1
        return True


def _has_nothing_else(wire: ServerConnection[Any]) -> bool:
    return not (wire.calls or wire.pending or wire.buffered_bytes) and wire.has_room()
