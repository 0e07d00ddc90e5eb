"""What befalls nodes, their disks and their leases from time to time."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.metadata.authority import Compare, Put
from tests.simulation.replicas.cluster import Cluster
from tests.simulation.replicas.log import SimLog
from tests.simulation.replicas.node import Disk, Node, live_key


class Faults:
    """Kills, power cuts, disks that lose something, pauses, lost leases, drains."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def events(self) -> list[Callable[[], None]]:
        """Those that are in the plan."""
        known: dict[str, Callable[[], None]] = {
            "kills": self._kill,
            "power cuts": self._cut_power,
            "lossy disks": self._lose_disk,
            "replaced disks": self._replace_disk,
            "old images": self._return_image,
            "pauses": self._pause,
            "early lease loss": self._lose_lease,
            "refused writes": self._refuse_write,
            "drains": self._drain,
            "compacted metadata": self._compact_metadata,
        }
        return [event for name, event in known.items() if name in self._cluster.on]

    def _kill(self) -> None:
        node = self._victim()
        if node is not None:
            self._end(node)
            node.log.refuse_write()
            self._cluster.say(f"[kills] node {node.id} is killed")

    def _cut_power(self) -> None:
        nodes = self._cluster.all_nodes if self._cluster.random() < 0.15 else [self._victim()]
        for node in nodes:
            if node is not None and node.up:
                node.log.refuse_write()
                safe = node.log.flushed_offset if self._cluster.flush_at_acknowledgement else self._tail(node.log)
                self._lose(node, safe)
                node.boot += 1
                node.doubt = not self._cluster.flush_at_acknowledgement
                self._harm(node, node.doubt)
                self._end(node)
                self._cluster.say(f"[power cuts] node {node.id} ends at {node.log.end_offset}")
        self._cluster.check_all()

    def _lose_disk(self) -> None:
        """A power cut after which something is gone that was on disk; or the whole directory of the log."""
        node = self._victim()
        if node is None or self._cluster.random() < 0.4:
            return
        node.log.refuse_write()
        if self._cluster.random() < 0.3:
            node.disk.log, node.disk.topic_id = SimLog(), None
        else:
            self._lose(node, self._tail(node.log))
        node.boot += 1
        node.doubt = node.damaged = True
        self._harm(node, True)
        self._end(node)
        self._cluster.say(f"[lossy disks] node {node.id} ends at {node.log.end_offset}")

    def _replace_disk(self) -> None:
        node = self._victim()
        if node is not None and self._cluster.random() < 0.4:
            self._end(node)
            node.disk = Disk()
            node.doubt = True
            self._harm(node, True)
            self._cluster.say(f"[replaced disks] node {node.id} has an empty disk")

    def _return_image(self) -> None:
        node = self._cluster.all_nodes[int(self._cluster.random() * len(self._cluster.all_nodes))]
        image = node.image
        if image is None or node.up or image.record is None or node.disk.record is None:
            return
        if image.record.starts[-1] != node.disk.record.starts[-1]:
            node.disk, node.image = image, None
            node.doubt, node.damaged = True, False
            self._harm(node, True)
            self._cluster.say(f"[old images] node {node.id} has the disk of {image.record.starts}")

    def _pause(self) -> None:
        node = self._victim()
        if node is not None:
            node.paused = True
            self._cluster.say(f"[pauses] node {node.id} stands still")

    def _lose_lease(self) -> None:
        node = self._victim()
        if node is not None:
            self._cluster.authority.revoke(node.lease)
            self._cluster.say(f"[early lease loss] of node {node.id}")

    def _refuse_write(self) -> None:
        found = self._cluster.a_leader()
        if found is not None:
            found[0].log.refuse_write()
            self._cluster.say(f"[refused writes] node {found[0].id} ends at {found[0].log.end_offset} again")

    def _drain(self) -> None:
        node = self._cluster.any_node()
        known = None if node is None else self._cluster.authority.get(live_key(node.id))
        if node is not None and known is not None and not node.leaves:
            node.leaves = True
            value = (known.value[0], False)
            self._cluster.authority.transaction(
                [Compare(known.key, "create", node.me.broker_epoch)], [Put(known.key, value, known.lease)]
            )
            self._cluster.say(f"[drains] node {node.id} is to stop")

    def _compact_metadata(self) -> None:
        self._cluster.authority.compact(self._cluster.authority.revision - int(self._cluster.random() * 3))
        self._cluster.say(f"[compacted metadata] up to {self._cluster.authority.compacted}")

    def _end(self, node: Node) -> None:
        node.stop_replica(noting=False)
        node.up = node.paused = node.leaves = False
        if "old images" in self._cluster.on and self._cluster.random() < 0.5:
            node.take_image()

    def _victim(self) -> Node | None:
        node = self._cluster.all_nodes[int(self._cluster.random() * len(self._cluster.all_nodes))]
        return node if node.up else None

    def _tail(self, log: SimLog) -> int:
        ends = [log.start_offset, *(batch.next_offset for batch in log.batches)]
        return ends[max(0, len(ends) - 1 - int(self._cluster.random() * 4))]

    def _lose(self, node: Node, safe: int) -> None:
        """Any part of what lies behind ``safe`` is gone."""
        ends = [safe, *(batch.next_offset for batch in node.log.batches if batch.next_offset > safe)]
        node.log.lose(ends[int(self._cluster.random() * len(ends))])

    def _harm(self, node: Node, harmed: bool) -> None:
        if harmed:
            node.harmed = self._cluster.authority.revision
