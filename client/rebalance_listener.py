"""What a program may want to hear about its partitions."""

from __future__ import annotations

from collections.abc import Awaitable

from protocol.subscription import TopicPartition


class RebalanceListener:
    """Told when partitions come and go. Override what you need, as plain functions or as coroutines.

    They run on the event loop the consumer was started on, one at a time. ``reason`` says why the group rebalanced: who
    joined, left, or missed which deadline. An exception out of a listener does not stop the rebalance; the next call on
    the consumer raises it. Committing, ``seek`` and ``position`` are fine inside; asking for records is not.
    """

    def on_partitions_revoked(self, tps: frozenset[TopicPartition], reason: str) -> Awaitable[None] | None:
        """Before ``tps`` go to other members. No record of theirs is handed out any more; offsets can still be committed.

        All partitions at every rebalance; with cooperative assignors only those that go, and nothing is called when none do.
        """

    def on_partitions_assigned(self, tps: frozenset[TopicPartition], reason: str) -> Awaitable[None] | None:
        """After ``tps`` came to this member and before the first of their records is handed out.

        Called at the end of every rebalance. With cooperative assignors ``tps`` are those that came in addition, and may be
        none; a partition that changes hands comes with a second rebalance, after its former owner has given it up.
        """

    def on_partitions_lost(self, tps: frozenset[TopicPartition], reason: str) -> Awaitable[None] | None:
        """``tps`` belong to others already (KIP-429): stop work on them; a commit would be refused."""
