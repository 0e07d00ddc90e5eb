import asyncio
from collections.abc import Mapping
from functools import partial

from aiocohort import Admin, Consumer, Coordinator, Producer, Subscription, TopicPartition


class LagWeightedAssignor:
    """The partition with the longest queue first, always to the member that has the least to do so far."""

    name = "lag-weighted"
    uses_owned_partitions = False  # the plan does not depend on who held what

    def __init__(self, lag: Mapping[TopicPartition, int]) -> None:
        self.lag = lag  # whichever member leads plans by its own measurement

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        plan: dict[str, list[TopicPartition]] = {member_id: [] for member_id in sorted(members)}
        load = dict.fromkeys(plan, 0)
        everything = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
        for tp in sorted(everything, key=lambda tp: (-self.lag.get(tp, 0), tp)):
            subscribers = [member_id for member_id in plan if tp.topic in members[member_id].topics]
            if subscribers:
                member_id = min(subscribers, key=load.__getitem__)
                plan[member_id].append(tp)
                load[member_id] += self.lag.get(tp, 0) + 1  # an empty queue is some work too
        return plan


async def measure(admin: Admin, group: str) -> dict[TopicPartition, int]:
    return {TopicPartition(each.topic, each.partition): each.lag or 0 for each in await admin.group_lag(group)}


async def main() -> None:
    async with Coordinator() as coordinator, Admin(bootstrap_servers=coordinator.address) as admin:
        await admin.create_topics({"orders": 4})
        async with Producer(bootstrap_servers=coordinator.address) as producer:
            for partition, count in enumerate([900, 100, 500, 300]):
                await producer.send_many("orders", [b"coffee"] * count, partition=partition)
        await admin.alter_offsets("kitchen", {TopicPartition("orders", partition): 0 for partition in range(4)})

        assignor = LagWeightedAssignor(await measure(admin, "kitchen"))
        member = partial(
            Consumer, "orders", bootstrap_servers=coordinator.address, group_id="kitchen", assignors=[assignor]
        )
        async with member() as first, member() as second:
            while not (first.assignment() and second.assignment()):
                await asyncio.sleep(0.05)
            for consumer in (first, second):
                share = sorted(consumer.assignment())
                print([tp.partition for tp in share], "lag", sum(assignor.lag[tp] for tp in share))
            # As time goes by: assignor.lag = await measure(...), then await first.enforce_rebalance("lag was measured").


if __name__ == "__main__":
    asyncio.run(main())
