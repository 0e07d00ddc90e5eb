"""The custom assignor of docs/assignors.md: what its plan promises, and that it works in a real group."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from aiocohort import Admin, Consumer, Coordinator, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from client.assignors import Assignor, Subscription
from tests.client.assignors.groups import clusters, groups, shown, subscribed
from tests.examples.lag_weighted import LagWeightedAssignor, measure
from tests.integration.consuming import QUICK, create, fill, until

queues = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("abcd"), st.integers(0, 11)), st.integers(0, 1000), max_size=12
)


@given(cluster=clusters, group=groups, lag=queues)
def test_each_partition_has_one_owner_who_subscribes(
    cluster: dict[str, int], group: dict[str, Subscription], lag: dict[TopicPartition, int]
) -> None:
    assignor: Assignor = LagWeightedAssignor(lag)
    plan = assignor.assign(cluster, group)
    wanted = {topic for each in group.values() for topic in each.topics}
    everything = [TopicPartition(topic, n) for topic, count in cluster.items() if topic in wanted for n in range(count)]
    assert set(plan) == set(group)
    assert Counter(tp for share in plan.values() for tp in share) == Counter(everything)
    assert all(tp.topic in group[member].topics for member, share in plan.items() for tp in share)
    assert plan == assignor.assign(dict(reversed(cluster.items())), dict(reversed(group.items())))


@given(cluster=clusters, names=st.lists(st.text("mn01", min_size=1), unique=True, min_size=1, max_size=9), lag=queues)
def test_among_equals_no_member_is_more_than_one_queue_ahead_of_another(
    cluster: dict[str, int], names: list[str], lag: dict[TopicPartition, int]
) -> None:
    plan = LagWeightedAssignor(lag).assign(cluster, {name: subscribed(*cluster) for name in names})
    loads = {name: sum(lag.get(tp, 0) + 1 for tp in share) for name, share in plan.items()}
    for share in plan.values():
        if share:
            assert sum(lag.get(tp, 0) + 1 for tp in share[:-1]) <= min(loads.values())


def test_one_long_queue_weighs_as_much_as_many_short_ones() -> None:
    lag = {TopicPartition("t", number): queue for number, queue in enumerate([900, 100, 500, 300])}
    plan = LagWeightedAssignor(lag).assign({"t": 4}, {name: subscribed("t") for name in ("m1", "m2")})
    assert shown(plan) == {"m1": ["t-0"], "m2": ["t-2", "t-3", "t-1"]}


async def test_a_group_follows_what_is_measured() -> None:
    async with Coordinator() as c, Admin(c.address) as admin:
        await create(c.address, t=3)
        for partition, count in enumerate([10, 30, 20]):
            await fill(c.address, "t", range(count), partition=partition)
        await admin.alter_offsets("g", {TopicPartition("t", partition): 0 for partition in range(3)})
        assignor = LagWeightedAssignor(await measure(admin, "g"))
        assert sorted(assignor.lag.values()) == [10, 20, 30]
        member = partial(Consumer, "t", bootstrap_servers=c.address, group_id="g", assignors=[assignor], **QUICK)

        def split() -> set[frozenset[int]]:
            return {frozenset(tp.partition for tp in each.assignment()) for each in (first, second)}

        async with member() as first, member() as second:
            await until(lambda: split() == {frozenset({1}), frozenset({0, 2})})
            await fill(c.address, "t", range(100), partition=0)
            assignor.lag = await measure(admin, "g")
            await first.enforce_rebalance("lag was measured")
            await until(lambda: split() == {frozenset({0}), frozenset({1, 2})})


def test_the_program_prints_shares_of_equal_lag() -> None:
    program = Path(__file__).with_name("lag_weighted.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] lag 900", "[1, 2, 3] lag 900"]
