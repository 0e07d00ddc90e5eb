"""2,500 cases that Kafka's own assignors have answered, and the measures by which plans are compared with theirs.

``kafka_answers.jsonl.xz`` holds facts: inputs drawn at random, and what kafka-clients 4.4.0 (``RangeAssignor``,
``RoundRobinAssignor``, ``StickyAssignor``, ``CooperativeStickyAssignor``) makes of them. One JSON object a line:

    s, k   the seed and the kind: "plain" (no member claims anything), "true" (claims that fit together), "conflict" (claims
           that do not), "rack", or "chain" (rebalances one after the other, "chain-miss" with members that miss some)
    n, p   names of topics and their partitions; 0 partitions: there is no such topic
    m      members: [id, [topic numbers], instance id or null, rack or null, {topic number: [claimed]}, generation]
    r      racks of each partition, by topic number
    e      the events of each step of a chain
    w, a   the assignors asked, and their answers: for range and round robin the owner (a number) of each partition of each
           topic; for the sticky ones [sum of squared loads, gap, spread, partitions that an owner loses], for
           cooperative-sticky the same of the last of its rounds, then how many rounds, and two counts of partitions given
           to one while another claims them; a text where Kafka's plan is invalid or an exception. Of a chain, one a step.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from client.assignors import Assignor, Subscription
from protocol.subscription import TopicPartition
from tests.client.assignors.oracles import Plan, subscribed_partitions, unevenness

_FILE: Final = Path(__file__).with_name("kafka_answers.jsonl.xz")
_MOST_ROUNDS: Final = 8

Members = dict[str, Subscription]


@dataclass
class Case:
    """One case, as arguments of ``Assignor.assign``."""

    name: str
    partitions: dict[str, int]
    members: Members
    racks: dict[TopicPartition, frozenset[str]]
    topics: list[str]
    steps: list[list[list[Any]]]
    answers: dict[str, Any]


def read_cases(kind: str) -> Iterator[Case]:
    """The cases of one kind, "chain" with "chain-miss"."""
    with lzma.open(_FILE, "rt") as lines:
        for line in lines:
            if (case := json.loads(line))["k"].split("-")[0] == kind:
                yield _case(case)


def _case(case: dict[str, Any]) -> Case:
    names: list[str] = case["n"]
    members = {
        member_id: Subscription(
            tuple(names[topic] for topic in topics),
            owned_partitions=tuple(TopicPartition(names[int(topic)], n) for topic, held in owned.items() for n in held),
            generation=generation,
            rack=rack,
            group_instance_id=instance_id,
        )
        for member_id, topics, instance_id, rack, owned, generation in case["m"]
    }
    racks = {
        TopicPartition(names[int(topic)], number): frozenset(near)
        for topic, placed in case.get("r", {}).items()
        for number, near in enumerate(placed)
    }
    partitions = {name: count for name, count in zip(names, case["p"], strict=True) if count}
    return Case(f"{case['k']} {case['s']}", partitions, members, racks, names, case.get("e", []), case["a"])


def is_refusal(answer: Any) -> bool:
    """Whether Kafka gave no valid plan."""
    return bool(answer) and isinstance(answer[0], str)


def owners(case: Case, plan: Plan) -> dict[str, list[int]]:
    """The plan in the form of an answer of range or round robin."""
    number = {member_id: at for at, member_id in enumerate(case.members)}
    answer: dict[str, list[int]] = {}
    for member_id, share in plan.items():
        for topic, partition in share:
            at = str(case.topics.index(topic))
            answer.setdefault(at, [-1] * case.partitions[topic])[partition] = number[member_id]
    return answer


@dataclass(frozen=True)
class Measures:
    """What there is to say of a sticky plan; less is better in each."""

    unevenness: int
    gap: int
    spread: int
    moved: int
    rounds: int = 1

    @classmethod
    def of(cls, partitions: Mapping[str, int], before: Members, plan: Plan, rounds: int = 1) -> Measures:
        """``before``: the members with their claims of the time before the rebalance."""
        loads = [len(share) for share in plan.values()]
        spread = max(loads, default=0) - min(loads, default=0)
        owned = _rightful_owners(partitions, before)
        kept = sum(owned.get(tp) == member_id for member_id, share in plan.items() for tp in share)
        return cls(unevenness(plan), _gap(before, plan), spread, len(owned) - kept, rounds)

    @classmethod
    def of_answer(cls, answer: list[int]) -> Measures:
        """Kafka's."""
        return cls(*answer[:5])


def _gap(members: Members, plan: Plan) -> int:
    """The largest difference of loads between a member and one that could take a partition from it."""
    least: dict[str, int] = {}
    for member_id, subscription in members.items():
        for topic in subscription.topics:
            least[topic] = min(least.get(topic, len(plan[member_id])), len(plan[member_id]))
    return max((len(share) - least[topic] for share in plan.values() for topic, _ in share), default=0)


def _rightful_owners(partitions: Mapping[str, int], members: Members) -> dict[TopicPartition, str]:
    """The claimant of the highest generation, if there is one alone."""
    claimants: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member_id, subscription in members.items():
        for tp in set(subscription.owned_partitions):
            if tp.topic in subscription.topics and 0 <= tp.partition < partitions.get(tp.topic, 0):
                claimants.setdefault(tp, []).append((subscription.generation, member_id))
    newest = {tp: [member for each, member in of if each == max(of)[0]] for tp, of in claimants.items()}
    return {tp: members_of[0] for tp, members_of in newest.items() if len(members_of) == 1}


def check_without(withheld: bool, partitions: Mapping[str, int], members: Members, plan: Plan) -> None:
    """That a plan is valid; with ``withheld`` some partitions may be given to no member, but none that another claims."""
    given = Counter(tp for share in plan.values() for tp in share)
    wanted = subscribed_partitions(partitions, members)
    assert set(plan) == set(members)
    assert not given or max(given.values()) == 1
    assert given.keys() <= wanted if withheld else given.keys() == wanted
    for member_id, share in plan.items():
        assert {topic for topic, _ in share} <= set(members[member_id].topics)
    if withheld:
        for member_id, share in plan.items():
            new = set(share).difference(members[member_id].owned_partitions)
            for other, subscription in members.items():
                assert other == member_id or not new.intersection(subscription.owned_partitions)


def settle(
    assignor: Assignor,
    partitions: Mapping[str, int],
    members: Members,
    generation: int,
    missing: frozenset[str] = frozenset(),
) -> tuple[dict[str, list[TopicPartition]], Members, int, int]:
    """Rebalances a cooperative group until no member gives anything up; ``missing`` do not learn of the first plan.

    Returns the last plan, the members as they are then, the number of rounds and the generation.
    """
    for rounds in range(1, _MOST_ROUNDS + 1):
        plan = assignor.assign(partitions, members)
        check_without(True, partitions, members, plan)
        generation += 1
        learning = {member_id for member_id in members if rounds > 1 or member_id not in missing}
        given_up = any(set(members[each].owned_partitions).difference(plan[each]) for each in learning)
        members = {
            member_id: replace(each, owned_partitions=tuple(plan[member_id]), generation=generation)
            if member_id in learning
            else each
            for member_id, each in members.items()
        }
        if not given_up and len(learning) == len(members):
            check_without(False, partitions, members, plan)
            return plan, members, rounds, generation
    raise AssertionError(f"the group did not settle within {_MOST_ROUNDS} rounds")


def happen(case: Case, events: list[list[Any]]) -> frozenset[str]:
    """Changes the group as a step of a chain says; returns who will miss its rebalance."""
    missing: set[str] = set()
    for kind, who, *what in events:
        if kind == "join":
            topics = tuple(case.topics[topic] for topic in what[0])
            case.members[who] = Subscription(topics, group_instance_id=what[1])
        elif kind == "leave":
            del case.members[who]
        elif kind == "sub":
            topics = tuple(case.topics[topic] for topic in what[0])
            case.members[who] = replace(case.members[who], topics=topics)
        elif kind == "size":
            case.partitions[case.topics[who]] = what[0]
        else:
            missing.add(who)
    return frozenset(missing & case.members.keys())
