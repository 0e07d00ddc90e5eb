"""Which partition a record goes to."""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import UnknownTopicOrPartitionError
from client.producer.acknowledgements import BatchSlice, BulkAcknowledgement
from client.producer.batch import ProducerBatch
from client.producer.partition_queue import PartitionQueue, PartitionQueues
from client.producer.partitioner import KeyPartitions, Partitioner, StickyPartitioner
from client.producer.topic import LeaderAvailability, ProducedTopic
from client.transport.metadata import Topology
from protocol.hashing import partition_for_key
from protocol.messages.cluster import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from tests.client.producer.test_partition_queue import open_batch


def topology(partitions: int, leaderless: frozenset[int] = frozenset()) -> Topology:
    """One node that leads every partition of topic "t" but those without a leader."""
    described = tuple(
        PartitionMetadata(0, index, -1 if index in leaderless else 0, 0, (0,), (0,)) for index in range(partitions)
    )
    topic = TopicMetadata(0, "t", "id", False, described)
    return Topology.of(MetadataResponse(1, "cluster", 0, (BrokerMetadata(0, "127.0.0.1", 7337),), (topic,)))


def topic(cluster: Topology, partitioner: Partitioner | None = None, batch_size: int = 1000) -> ProducedTopic:
    """Topic "t" as a producer sees it."""
    return ProducedTopic(
        "t", cluster, queue_of=PartitionQueue, partitioner=partitioner, random=Random(1), batch_size=batch_size
    )


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_key_goes_where_kafkas_murmur2_puts_it_however_often_it_is_asked(key: bytes, partitions: int) -> None:
    keys = KeyPartitions(partitions)
    assert [keys[key], keys[key]] == [partition_for_key(key, partitions)] * 2


def test_keys_are_remembered_up_to_a_bound() -> None:
    keys = KeyPartitions(7)
    for number in range(70_000):
        keys[b"%d" % number]
    assert len(keys) <= 65_536
    assert keys[b"1"] == partition_for_key(b"1", 7)


def test_large_keys_are_remembered_up_to_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.producer.partitioner._REMEMBERED_BYTES", 10_000)
    keys = KeyPartitions(7)
    held = []
    for number in range(100):
        keys[b"%d" % number * 500]
        held.append(sum(map(len, keys)))
    assert 9_000 <= max(held) <= 11_000


def test_a_key_keeps_its_partition_while_partitions_have_no_leader() -> None:
    cluster = topology(6, leaderless=frozenset({partition_for_key(b"key", 6)}))
    assert topic(cluster).choose(b"key", b"v", 20) == partition_for_key(b"key", 6)


def sticky(batch_size: int, partitions: int, available: list[int] | None = None, seed: int = 7) -> StickyPartitioner:
    partitioner = StickyPartitioner(Random(seed), batch_size)
    partitioner.update(range(partitions), range(partitions) if available is None else available)
    return partitioner


def choose(partitioner: StickyPartitioner, size: int, is_full: bool = True) -> int:
    partition = partitioner.partition_for_next(is_full)
    partitioner.produced(size)
    return partition


@given(st.integers(0, 99), st.integers(2, 9), st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1))
def test_it_moves_on_after_a_batch_of_bytes_when_the_batch_is_full_and_at_two_in_any_case(
    seed: int, partitions: int, records: list[tuple[int, bool]]
) -> None:
    partitioner, batch_size = sticky(50, partitions, seed=seed), 50
    current, produced = partitioner.current, 0
    for size, is_full in records:
        chosen = choose(partitioner, size, is_full)
        if produced >= 2 * batch_size or (produced >= batch_size and is_full):
            assert chosen != current
            current, produced = chosen, 0
        assert chosen == current
        produced += size


def test_three_records_of_one_byte_fill_a_batch_of_three() -> None:
    partitioner = sticky(3, 4)
    chosen = [choose(partitioner, 1) for _ in range(9)]
    assert [len(set(chosen[start : start + 3])) for start in (0, 3, 6)] == [1, 1, 1]
    assert chosen[0] != chosen[3] != chosen[6]


class EveryNumber(Random):
    """Draws 0, 1, 2, ... so that one round shows every outcome as often as it is likely."""

    drawn = -1

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self.drawn += 1
        return self.drawn % start


def draws(backlog: list[int | None], count: int, available: list[int] | None = None) -> Counter[int]:
    partitioner = StickyPartitioner(random := EveryNumber(), 1, lambda: backlog)
    partitioner.update(range(len(backlog)), range(len(backlog)) if available is None else available)
    random.drawn = -1
    found: Counter[int] = Counter()
    for _ in range(count):
        partitioner.produced(2)
        found[partitioner.current] += 1
    return found


@pytest.mark.parametrize(
    ("backlog", "weights"),
    [
        ([5, 0, 3, 0, 1], [1, 6, 3, 6, 5]),
        ([0, 3, 1], [4, 1, 3]),
        ([None, 3, 1], [0, 1, 3]),
        ([7, None, None], [1, 0, 0]),
        ([2, None, 2], [1, 0, 1]),
    ],
)
def test_a_partition_is_drawn_less_often_the_more_of_it_is_not_acknowledged(
    backlog: list[int | None], weights: list[int]
) -> None:
    found = draws(backlog, 3 * sum(weights))
    assert [found[index] for index in range(len(backlog))] == [3 * weight for weight in weights]


def test_while_all_partitions_are_as_far_or_all_are_excluded_any_may_be_drawn() -> None:
    equal: list[list[int | None]] = [[2, 2, 2], [None, None, None]]
    for backlog in equal:
        assert set(draws(backlog, 30)) == {0, 1, 2}


def test_what_has_no_leader_is_not_drawn_however_short_its_queue() -> None:
    assert set(draws([0, 5, 3], 30, available=[1, 2])) == {1, 2}


@pytest.mark.parametrize("adaptive", [True, False])
async def test_a_leader_that_is_slow_gets_fewer_records(adaptive: bool) -> None:
    """Two nodes lead two partitions each; one of them takes a request in every tenth turn only."""
    queues = PartitionQueues[ProducerBatch](1000, 0.0)
    target = ProducedTopic(
        "t", topology(4), queue_of=queues.queue, partitioner=None, random=Random(5), batch_size=1000,
        is_slow=(lambda partition: False) if adaptive else None,
    )  # fmt: skip
    received: Counter[int] = Counter()
    for turn in range(2000):
        for _ in range(10):
            partition = target.choose(None, b"v", 100)
            queue = target.queues[partition]
            open_batch(queues, queue, 100, 0.0).append(
                None, b"v", 0, (), 100, BatchSlice(BulkAcknowledgement(1, Future()), [0], 0)
            )
            received[partition] += 1
        for queue in target.queues:
            if queue.partition.partition < 2 or turn % 10 == 0:
                request = queues.take(queue, 1000, 1.0) if queue.batches else None
                if request is not None:
                    queues.settle(request)
    slow = (received[2] + received[3]) / received.total()
    assert slow < 0.3 if adaptive else 0.45 < slow < 0.55


def test_every_partition_gets_its_share_of_bytes() -> None:
    partitioner = sticky(1000, 4)
    share: Counter[int] = Counter()
    for _ in range(40_000):
        share[choose(partitioner, 100)] += 100
    assert set(share) == {0, 1, 2, 3}
    assert all(0.2 < received / share.total() < 0.3 for received in share.values())


def test_partitions_without_a_leader_are_never_drawn() -> None:
    partitioner = sticky(1, 5, available=[1, 3])
    assert {choose(partitioner, 1) for _ in range(100)} == {1, 3}


def test_while_no_partition_has_a_leader_any_may_be_drawn() -> None:
    assert {choose(partitioner, 1) for partitioner in [sticky(1, 3, available=[])] for _ in range(100)} == {0, 1, 2}


def test_it_moves_away_when_the_leader_of_its_partition_goes() -> None:
    partitioner = sticky(1000, 3)
    partitioner.update(range(3), [index for index in range(3) if index != partitioner.current])
    gone = partitioner.current
    partitioner.update(range(3), [gone])
    assert partitioner.current == gone


def test_one_partition_is_enough() -> None:
    assert {choose(partitioner, 100) for partitioner in [sticky(10, 1)] for _ in range(10)} == {0}


def test_the_same_seed_draws_the_same_partitions() -> None:
    one, two = sticky(1, 50, seed=3), sticky(1, 50, seed=3)
    assert [choose(one, 1) for _ in range(50)] == [choose(two, 1) for _ in range(50)]


def test_a_partitioner_of_the_user_is_asked_once_a_record_with_what_is_stored() -> None:
    asked: list[tuple[object, ...]] = []

    def mine(*arguments: object) -> int:
        asked.append(arguments)
        return 2

    target = topic(topology(4, leaderless=frozenset({1})), mine)
    assert target.choose(b"key", b"value", 20) == 2
    assert asked == [("t", b"key", b"value", [0, 1, 2, 3], [0, 2, 3])]


def test_a_partitioner_that_gives_none_leaves_the_record_to_the_default() -> None:
    target = topic(topology(8), lambda topic, key, value, partitions, available: None)
    assert target.choose(b"key", None, 20) == partition_for_key(b"key", 8)
    assert target.choose(None, b"v", 20) in range(8)


@pytest.mark.parametrize(("answer", "error"), [(-1, ValueError), (4, ValueError), ("1", TypeError), (True, TypeError)])
def test_a_partitioner_that_gives_nonsense_is_told(answer: object, error: type[Exception]) -> None:
    target = topic(topology(4), lambda *arguments: answer)  # type: ignore[arg-type]
    with pytest.raises(error, match="the partitioner gave"):
        target.choose(None, b"v", 20)


def test_an_explicit_partition_must_exist() -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 't' has partitions 0 to 3, not 4"):
        topic(topology(4)).checked(4)
    with pytest.raises(TypeError, match="partition must be a whole number"):
        topic(topology(4)).checked("1")


@given(
    st.lists(
        st.tuples(st.none() | st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=30)),
        min_size=1,
        max_size=50,
    ),
    st.integers(1, 6),
    st.booleans(),
)
def test_many_records_are_spread_as_one_by_one(
    records: list[tuple[bytes | None, bytes | None]], partitions: int, custom: bool
) -> None:
    def mine(name: str, key: bytes | None, value: bytes | None, all_of_it: object, available: object) -> int | None:
        return len(value) % partitions if value else None

    keys, values = [key for key, _ in records], [value for _, value in records]
    sizes = [20 + len(value or b"") for value in values]
    one_by_one = topic(topology(partitions), mine if custom else None, batch_size=60)
    expected: dict[int, list[int]] = {}
    for index, (key, value) in enumerate(records):
        expected.setdefault(one_by_one.choose(key, value, sizes[index]), []).append(index)
    at_once = topic(topology(partitions), mine if custom else None, batch_size=60)
    assert at_once.by_partition(keys, values, sizes, range(len(records))) == expected


def test_new_partitions_are_used() -> None:
    target = topic(topology(1), batch_size=1)
    target.update(topology(3))
    assert target.partitions == [0, 1, 2]
    assert target.choose(b"key", None, 20) == partition_for_key(b"key", 3)
    assert {target.choose(None, b"v", 20) for _ in range(100)} == {0, 1, 2}


def test_a_partition_that_is_gone_keeps_its_queue_for_who_chose_it_before() -> None:
    """Between the choice and the batch may lie a wait for room; what is queued fails as that of a deleted topic."""
    target = topic(topology(4))
    target.update(topology(2))
    assert len(target.queues) == 4
    assert target.partitions == [0, 1]
    with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1, not 3"):
        target.checked(3)
    assert {target.choose(None, b"v", 20) for _ in range(100)} <= {0, 1}
    target.update(topology(5))
    assert [queue.partition.partition for queue in target.queues] == [0, 1, 2, 3, 4]


def test_a_leader_for_which_nothing_waits_is_not_slow() -> None:
    """It could not show that it keeps up again: who has nothing to send to it never tries."""
    queues = PartitionQueues[ProducerBatch](1000, 0.0)
    target = ProducedTopic(
        "t", topology(2), queue_of=queues.queue, partitioner=None, random=Random(1), batch_size=1000,
        is_slow=lambda partition: partition.partition == 1,
    )  # fmt: skip
    assert target._backlog() == [0, 0]
    open_batch(queues, target.queues[1], 100, 0.0)
    assert target._backlog() == [0, None]


def test_a_leader_is_slow_once_something_was_ready_for_it_for_so_long_and_nothing_went() -> None:
    leader, availability = ("127.0.0.1", 1), LeaderAvailability(1.0)
    assert not availability.is_slow(leader)
    availability.held_up(leader, 5.0)
    availability.went(leader, 10.0)
    availability.went(leader, 20.0)
    assert not availability.is_slow(leader), "nothing was ready in between"
    availability.held_up(leader, 21.0)
    assert not availability.is_slow(leader)
    availability.held_up(leader, 21.1)
    assert availability.is_slow(leader)
    availability.went(leader, 22.0)
    assert not availability.is_slow(leader)
    assert not availability.is_slow(None)


def test_without_a_timeout_no_leader_is_slow() -> None:
    leader, availability = ("127.0.0.1", 1), LeaderAvailability(0)
    availability.went(leader, 0.0)
    availability.held_up(leader, 1e9)
    assert not availability.is_slow(leader)
    assert not availability.matters
