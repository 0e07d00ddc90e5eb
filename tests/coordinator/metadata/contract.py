"""What every metadata store promises. A store's test module takes over ``SharedStoreContract`` and says how two stores are
made that show the same keys, as two nodes have them; for one that a node has for itself it takes over ``StoreContract``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest

from coordinator.metadata.authority import (
    MIN_TTL_MS,
    Compare,
    Delete,
    DeletePrefix,
    Delta,
    Put,
    TransactionError,
)
from coordinator.metadata.store import MetadataStore


class Cluster(ABC):
    """Two nodes' stores of one cluster, and its time."""

    one: MetadataStore
    other: MetadataStore
    ttl_ms = MIN_TTL_MS
    """Of a lease that is to end by time."""

    @abstractmethod
    async def pass_time(self, ms: int) -> None:
        """So much time goes by."""

    @abstractmethod
    async def compact(self) -> None:
        """The past is forgotten."""

    def other_is_behind(self) -> AbstractAsyncContextManager[None]:
        """While this lasts, ``other`` does not hear what happens."""
        return nullcontext()


def seen(deltas: list[Delta]) -> list[tuple[int, list[tuple[str, Any]]]]:
    """Revisions with keys and what they hold then."""
    return [
        (delta.revision, [(change.key, change.after and change.after.value) for change in delta.changes])
        for delta in deltas
    ]


class StoreContract:
    """The promises."""

    async def test_what_is_written_is_seen_at_once_here_and_after_catching_up_elsewhere(self, cluster: Cluster) -> None:
        revision = await cluster.one.transaction([], [Put("a", {"v": 1})])
        assert revision == cluster.one.revision
        found = cluster.one.get("a")
        assert found is not None
        assert (found.value, found.mod_revision, found.version) == ({"v": 1}, revision, 1)
        assert await cluster.other.catch_up() >= (revision or 0)
        assert cluster.other.get("a") == found

    async def test_of_two_that_compare_with_the_same_revision_one_takes_effect(self, cluster: Cluster) -> None:
        first = await cluster.one.transaction([], [Put("a", 1)])
        assert first is not None
        compare = [Compare("a", "mod", first)]
        assert await cluster.one.transaction(compare, [Put("a", 2)]) is not None
        assert await cluster.other.transaction(compare, [Put("a", 3)]) is None
        await cluster.other.catch_up()
        found = cluster.other.get("a")
        assert found is not None
        assert found.value == 2

    async def test_a_key_is_made_once(self, cluster: Cluster) -> None:
        absent = [Compare("a", "create", 0)]
        assert await cluster.one.transaction(absent, [Put("a", 1)]) is not None
        assert await cluster.other.transaction(absent, [Put("a", 2)]) is None

    async def test_a_transaction_is_one_delta_for_every_watcher_of_its_keys(self, cluster: Cluster) -> None:
        await cluster.one.transaction([], [Put("p/a", 0), Put("q", 0)])
        await cluster.other.catch_up()
        here: list[Delta] = []
        there: list[Delta] = []
        cluster.one.watch("p/", here.append)
        cluster.other.watch("p/", there.append)
        revision = await cluster.one.transaction([], [Put("p/c", 1), Put("p/b", 2), Delete("p/a"), Put("q", 3)])
        await cluster.one.transaction([], [Put("q", 4)])
        await cluster.other.catch_up()
        assert seen(here) == [(revision, [("p/a", None), ("p/b", 2), ("p/c", 1)])]
        assert seen(there) == seen(here)

    async def test_a_watcher_is_told_nothing_of_the_past_and_nothing_after_its_end(self, cluster: Cluster) -> None:
        await cluster.one.transaction([], [Put("a", 1)])
        deltas: list[Delta] = []
        stop = cluster.one.watch("", deltas.append)
        second = await cluster.one.transaction([], [Put("a", 2)])
        stop()
        stop()
        await cluster.one.transaction([], [Put("a", 3)])
        assert seen(deltas) == [(second, [("a", 2)])]

    async def test_a_prefix_is_removed_with_all_of_its_keys(self, cluster: Cluster) -> None:
        await cluster.one.transaction([], [Put("p/a", 1), Put("p/b", 1), Put("p0", 1)])
        await cluster.one.transaction([], [DeletePrefix("p/")])
        assert [known.key for known in cluster.one.range("")] == ["p0"]

    async def test_a_lease_that_is_given_back_ends_at_once_and_once(self, cluster: Cluster) -> None:
        lease = await cluster.one.grant(60_000)
        await cluster.one.transaction([], [Put("live/1", 1, lease.id), Put("controller", 1, lease.id)])
        await lease.revoke()
        await lease.revoke()
        await cluster.other.catch_up()
        assert cluster.other.range("") == []
        with pytest.raises(TransactionError, match="which is over"):
            await cluster.one.transaction([], [Put("live/1", 1, lease.id)])

    async def test_a_key_that_is_put_without_its_lease_stays(self, cluster: Cluster) -> None:
        lease = await cluster.one.grant(60_000)
        await cluster.one.transaction([], [Put("live/1", 1, lease.id)])
        await cluster.one.transaction([], [Put("live/1", 2)])
        await lease.revoke()
        await cluster.other.catch_up()
        found = cluster.other.get("live/1")
        assert found is not None
        assert (found.value, found.version, found.lease) == (2, 2, 0)

    async def test_what_changes_nothing_has_no_revision(self, cluster: Cluster) -> None:
        first = await cluster.one.transaction([], [Put("a", 1)])
        assert await cluster.one.transaction([], [Delete("b"), DeletePrefix("c/")]) == first == cluster.one.revision

    async def test_a_key_that_comes_again_is_new(self, cluster: Cluster) -> None:
        await cluster.one.transaction([], [Put("a", 1)])
        await cluster.one.transaction([], [Put("a", 2)])
        await cluster.one.transaction([], [Delete("a")])
        again = await cluster.one.transaction([Compare("a", "version", 0)], [Put("a", 3)])
        await cluster.other.catch_up()
        found = cluster.other.get("a")
        assert found is not None
        assert (found.create_revision, found.mod_revision, found.version) == (again, again, 1)


class SharedStoreContract(StoreContract):
    """What stores of several nodes promise besides: leases end by time, and who was away is told what became of keys."""

    async def test_the_keys_of_a_lease_go_when_it_is_not_renewed(self, cluster: Cluster) -> None:
        lease = await cluster.one.grant(cluster.ttl_ms)
        await cluster.one.transaction([], [Put("live/1", 1, lease.id)])
        for _ in range(6):
            await cluster.pass_time(cluster.ttl_ms // 4)
            assert await lease.renew()
        await cluster.other.catch_up()
        assert cluster.other.get("live/1") is not None
        deltas: list[Delta] = []
        cluster.other.watch("live/", deltas.append)
        await cluster.pass_time(3 * cluster.ttl_ms)
        assert not await lease.renew()
        await cluster.other.catch_up()
        assert [keys for _, keys in seen(deltas)] == [[("live/1", None)]]

    async def test_who_missed_deltas_that_are_forgotten_is_told_the_difference_as_one(self, cluster: Cluster) -> None:
        await cluster.one.transaction([], [Put("a", 1), Put("b", 1)])
        await cluster.other.catch_up()
        deltas: list[Delta] = []
        cluster.other.watch("", deltas.append)
        async with cluster.other_is_behind():
            await cluster.one.transaction([], [Put("a", 2), Put("c", 1)])
            await cluster.one.transaction([], [Put("a", 3), Delete("b")])
            await cluster.compact()
        await cluster.other.catch_up()
        assert seen(deltas) == [(cluster.one.revision, [("a", 3), ("b", None), ("c", 1)])]
        assert cluster.other.range("") == cluster.one.range("")
