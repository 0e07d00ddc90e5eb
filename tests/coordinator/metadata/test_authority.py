"""The authority: etcd's semantics in memory; and a mirror that follows it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.metadata.authority import (
    MAX_OPERATIONS,
    MIN_TTL_MS,
    Authority,
    Change,
    CompactedError,
    Compare,
    Delete,
    DeletePrefix,
    Delta,
    KeyValue,
    Put,
    TransactionError,
)
from coordinator.metadata.mirror import Mirror


def made(**keys: Any) -> Authority:
    """An authority with these keys, each put by a transaction of its own."""
    authority = Authority()
    for key, value in keys.items():
        authority.transaction([], [Put(key, value)])
    return authority


def test_a_key_knows_when_it_was_made_and_changed_and_how_often() -> None:
    authority = made(a=1)
    authority.transaction([], [Put("a", 2)])
    assert authority.get("a") == KeyValue("a", 2, 2, 3, 2)
    authority.transaction([], [Delete("a")])
    assert authority.get("a") is None
    authority.transaction([], [Put("a", 3)])
    assert authority.get("a") == KeyValue("a", 3, 5, 5, 1)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Compare("a", "mod", 3), True),
        (Compare("a", "mod", 2), False),
        (Compare("a", "create", 2), True),
        (Compare("a", "version", 2), True),
        (Compare("a", "version", 0), False),
        (Compare("b", "mod", 0), True),
        (Compare("b", "create", 0), True),
        (Compare("b", "version", 1), False),
    ],
)
def test_a_transaction_takes_effect_if_its_conditions_hold(condition: Compare, holds: bool) -> None:
    authority = made(a=1)
    authority.transaction([], [Put("a", 2)])
    delta = authority.transaction([condition], [Put("c", 1)])
    assert (delta is not None, authority.get("c") is not None, authority.revision) == (holds, holds, 4 if holds else 3)


def test_all_of_a_transaction_happens_at_one_revision() -> None:
    authority = made(a=1, b=2)
    delta = authority.transaction([], [Put("c", 3), Delete("a"), Put("b", 4), Delete("unknown")])
    assert delta == Delta(
        4,
        (
            Change("a", KeyValue("a", 1, 2, 2, 1), None),
            Change("b", KeyValue("b", 2, 3, 3, 1), KeyValue("b", 4, 3, 4, 2)),
            Change("c", None, KeyValue("c", 3, 4, 4, 1)),
        ),
    )
    assert [known.key for known in authority.range("")] == ["b", "c"]


def test_a_transaction_that_changes_nothing_has_no_revision() -> None:
    authority = made(a=1)
    assert authority.transaction([], [Delete("b"), DeletePrefix("c")]) == Delta(2, ())
    assert list(authority.since(1)) == list(made(a=1).since(1))


def test_a_prefix_is_read_and_removed_in_order() -> None:
    authority = made(**{"p/b": 1, "p/a": 2, "q": 3, "p": 4, "p0": 5})
    assert [known.key for known in authority.range("p/")] == ["p/a", "p/b"]
    delta = authority.transaction([], [DeletePrefix("p/"), Put("q", 6)])
    assert delta is not None
    assert [change.key for change in delta.changes] == ["p/a", "p/b", "q"]
    assert [known.key for known in authority.range("")] == ["p", "p0", "q"]


@pytest.mark.parametrize(
    "operations",
    [
        [Put("a", 1), Put("a", 2)],
        [Put("a", 1), Delete("a")],
        [DeletePrefix("a"), Put("a", 1)],
        [Put("a", 1, lease=7)],
        [Put(str(number), 1) for number in range(MAX_OPERATIONS + 1)],
    ],
)
def test_a_transaction_that_makes_no_sense_is_refused_as_a_whole(operations: list[Put]) -> None:
    authority = made(a=0)
    with pytest.raises(TransactionError):
        authority.transaction([], [Put("before", 1), *operations])
    assert (authority.revision, authority.get("before")) == (2, None)


def test_deltas_are_read_from_any_revision_until_they_are_compacted() -> None:
    authority = made(a=1, b=2, c=3)
    assert [delta.revision for delta in authority.since(2)] == [3, 4]
    assert list(authority.since(4)) == []
    authority.compact(3)
    assert [delta.revision for delta in authority.since(3)] == [4]
    with pytest.raises(CompactedError, match="what came before 3 is compacted"):
        authority.since(2)
    assert authority.get("a") is not None


# Leases


def test_the_keys_of_a_lease_go_with_it_at_one_revision() -> None:
    authority = Authority()
    lease = authority.grant(5_000, 0)
    authority.transaction([], [Put("b", 1, lease), Put("a", 1, lease), Put("c", 1)])
    assert authority.expire(4_999) == []
    [delta] = authority.expire(5_000)
    assert [change.key for change in delta.changes] == ["a", "b"]
    assert [known.key for known in authority.range("")] == ["c"]
    assert not authority.renew(lease, 5_000)
    assert authority.revoke(lease).changes == ()


def test_a_lease_that_is_renewed_goes_on_and_none_is_shorter_than_the_least() -> None:
    authority = Authority()
    lease = authority.grant(1, 0)
    authority.transaction([], [Put("a", 1, lease)])
    assert authority.renew(lease, MIN_TTL_MS - 1)
    assert authority.expire(2 * MIN_TTL_MS - 2) == []
    assert len(authority.expire(2 * MIN_TTL_MS - 1)) == 1


def test_a_key_that_is_put_without_its_lease_stays() -> None:
    authority = Authority()
    lease, other = authority.grant(5_000, 0), authority.grant(5_000, 0)
    authority.transaction([], [Put("a", 1, lease), Put("b", 1, lease)])
    authority.transaction([], [Put("a", 2), Put("b", 2, other)])
    assert authority.revoke(lease).changes == ()
    assert [change.key for change in authority.revoke(other).changes] == ["b"]
    assert authority.get("a") is not None


def test_with_another_leader_of_the_store_every_lease_has_all_of_its_time_again() -> None:
    authority = Authority()
    lease = authority.grant(5_000, 0)
    authority.transaction([], [Put("a", 1, lease)])
    authority.restart_leases(4_000)
    assert authority.expire(8_999) == []
    assert len(authority.expire(9_000)) == 1


# Mirrors

OPERATIONS = st.lists(
    st.one_of(
        st.builds(Put, st.sampled_from(("a", "b/1", "b/2", "c")), st.integers(0, 3), st.just(0)),
        st.builds(Delete, st.sampled_from(("a", "b/1", "b/2", "c"))),
        st.builds(DeletePrefix, st.sampled_from(("b/", "c"))),
    ),
    min_size=1,
    max_size=20,
)


@given(OPERATIONS, st.lists(st.integers(0, 20), max_size=4), st.data())
def test_a_mirror_has_what_the_authority_had_at_its_revision(
    operations: list[Any], compactions: list[int], data: st.DataObject
) -> None:
    authority, mirror = Authority(), Mirror()
    pictures: dict[int, list[KeyValue]] = {0: [], 1: []}
    for place, operation in enumerate(operations):
        authority.transaction([], [operation])
        pictures[authority.revision] = authority.range("")
        if place in compactions:
            authority.compact(authority.revision)
        if data.draw(st.booleans()):
            try:
                deltas = list(authority.since(mirror.revision))
                for delta in deltas:
                    assert mirror.apply(delta)
                    assert not mirror.apply(delta), "twice is once"
            except CompactedError:
                before = mirror.range("")
                difference = mirror.replace(authority.range(""), authority.revision)
                assert difference is not None
                assert {change.key for change in difference.changes} == {
                    known.key for known in {*before} ^ {*mirror.range("")}
                }
            assert mirror.range("") == pictures[mirror.revision]
            assert mirror.range("b/") == [known for known in mirror.range("") if known.key.startswith("b/")]


def test_a_list_that_is_older_than_the_mirror_is_no_news() -> None:
    authority, mirror = made(a=1), Mirror()
    listed, revision = authority.range(""), authority.revision
    assert mirror.replace(listed, revision) is not None
    authority.transaction([], [Put("a", 2)])
    for delta in authority.since(revision):
        mirror.apply(delta)
    assert mirror.replace(listed, revision) is None
    found = mirror.get("a")
    assert found is not None
    assert found.value == 2
