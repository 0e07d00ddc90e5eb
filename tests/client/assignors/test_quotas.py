"""Quotas among members with equal subscriptions."""

from __future__ import annotations

from itertools import product

from client.assignors.shares import quotas


def test_quotas_keep_the_most_for_every_small_group() -> None:
    for partitions, members in product(range(9), range(1, 4)):
        common, more = divmod(partitions, members)
        even = [shares for shares in product((common, common + 1), repeat=members) if sum(shares) == partitions]
        assert all(shares.count(common + 1) == more for shares in even)
        for owned in product(range(partitions + 1), repeat=members):
            shares = quotas(partitions, owned)
            assert tuple(shares) in even
            assert sum(map(min, shares, owned)) == max(sum(map(min, other, owned)) for other in even)


def test_the_first_members_get_the_one_more_when_no_member_owns_anything() -> None:
    assert quotas(8, [0, 0, 0]) == [3, 3, 2]
