"""The comments of ``state.GroupState``, line by line: what each state answers to whom, and where that leaves the group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from coordinator.groups.config import GroupConfig
from coordinator.groups.group import Group
from coordinator.groups.state import TRANSITIONS, GroupState
from protocol.errors import ErrorCode
from protocol.messages.api import Request
from protocol.messages.groups import LeaveGroupResponse
from tests.coordinator.groups.model import (
    Shell,
    code_of,
    commit,
    heartbeat,
    join,
    joined,
    leave,
    settle,
    sync,
)
from tests.coordinator.groups.steps import step_of

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState
NONE, PENDING = ErrorCode.NONE, None


@dataclass(frozen=True)
class Known:
    """Who is in the group: a dynamic leader, a dynamic follower and a static member; and the id of a pending one."""

    shell: Shell
    leader: str
    follower: str
    pending: str
    generation: int


def in_state(state: GroupState) -> Known:
    """A group in ``state`` in which the follower and the static member have not joined again, or not synced."""
    shell = Shell(GroupConfig(group_max_size=5))
    leader = joined(shell, join()).member_id
    shell.enter(join())
    shell.send(join(instance="i"))
    settle(shell)
    group = shell.group
    assert group is not None
    _, follower, static = list(group.members)
    given = ""
    if state in (EMPTY, DEAD):
        shell.send(leave(leader, follower, static))
    if state is DEAD:
        shell = Shell()
    elif state is PREPARING:
        shell.send(join(leader))
        given = shell.answers[shell.send(join())].member_id  # type: ignore[attr-defined]
    else:
        given = shell.answers[shell.send(join())].member_id  # type: ignore[attr-defined]
    if state is COMPLETING:
        shell.send(leave(given))
        shell.send(join(leader))
        shell.send(join(follower))
        shell.send(join(static, instance="i"))
        given = shell.answers[shell.send(join())].member_id  # type: ignore[attr-defined]
    assert (shell.group.state if shell.group is not None else DEAD) is state
    generation = shell.group.generation if shell.group is not None else 1
    return Known(shell, leader, follower, given, generation)


Asks = Callable[[Known], Request]
ASKS: dict[str, Asks] = {
    "a new member": lambda known: join(),
    "a pending one": lambda known: join(known.pending),
    "a static new one": lambda known: join(instance="j"),
    "a static one returns": lambda known: join(instance="i"),
    "the leader": lambda known: join(known.leader),
    "a follower": lambda known: join(known.follower),
    "a follower changed": lambda known: join(known.follower, metadata=b"other"),
    "a stranger": lambda known: join("stranger"),
    "a fenced one": lambda known: join(known.follower, instance="i"),
    "sync": lambda known: sync(known.follower, known.generation),
    "sync of the leader": lambda known: sync(known.leader, known.generation, {}),
    "sync of a pending one": lambda known: sync(known.pending, known.generation),
    "sync old": lambda known: sync(known.follower, known.generation - 1),
    "sync fenced": lambda known: sync(known.follower, known.generation, instance="i"),
    "beat": lambda known: heartbeat(known.follower, known.generation),
    "poll": lambda known: heartbeat(known.follower, known.generation, 1_000),
    "beat old": lambda known: heartbeat(known.follower, known.generation - 1),
    "beat fenced": lambda known: heartbeat(known.follower, known.generation, instance="i"),
    "commit": lambda known: commit(known.follower, known.generation),
    "commit old": lambda known: commit(known.follower, known.generation - 1),
    "commit simple": lambda known: commit("", -1),
    "commit of a pending one": lambda known: commit(known.pending, known.generation),
    "commit fenced": lambda known: commit(known.follower, known.generation, instance="i"),
    "leave": lambda known: leave(known.follower),
    "leave of a pending one": lambda known: leave(known.pending),
    "leave by instance": lambda known: leave("", instance="i"),
    "leave of a stranger": lambda known: leave("stranger"),
    "leave fenced": lambda known: leave(known.follower, instance="i"),
}

ID = ErrorCode.MEMBER_ID_REQUIRED
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID
OLD = ErrorCode.ILLEGAL_GENERATION
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS

TABLE: dict[GroupState, dict[str, tuple[ErrorCode | None, GroupState]]] = {
    EMPTY: {
        "a new member": (ID, EMPTY),
        "a pending one": (NONE, COMPLETING),
        "a static new one": (PENDING, PREPARING),  # the pending member is waited for
        "a static one returns": (PENDING, PREPARING),  # it is not there any more: a new one
        **dict.fromkeys(
            ("the leader", "a follower", "a follower changed", "a stranger", "a fenced one"), (UNKNOWN, EMPTY)
        ),
        **dict.fromkeys(
            ("sync", "sync of the leader", "sync of a pending one", "sync old", "sync fenced"), (UNKNOWN, EMPTY)
        ),
        **dict.fromkeys(("beat", "poll", "beat old", "beat fenced"), (UNKNOWN, EMPTY)),
        **dict.fromkeys(("commit", "commit old", "commit of a pending one", "commit fenced"), (UNKNOWN, EMPTY)),
        "commit simple": (NONE, EMPTY),
        "leave of a pending one": (NONE, EMPTY),
        **dict.fromkeys(("leave", "leave by instance", "leave of a stranger", "leave fenced"), (UNKNOWN, EMPTY)),
    },
    PREPARING: {
        "a new member": (ID, PREPARING),
        "a pending one": (PENDING, PREPARING),
        "a static new one": (PENDING, PREPARING),
        "a static one returns": (PENDING, PREPARING),
        "the leader": (PENDING, PREPARING),
        "a follower": (PENDING, PREPARING),
        "a follower changed": (PENDING, PREPARING),
        "sync": (REBALANCE, PREPARING),
        "sync of the leader": (REBALANCE, PREPARING),
        "beat": (REBALANCE, PREPARING),
        "poll": (REBALANCE, PREPARING),
        "commit": (NONE, PREPARING),
        "leave": (NONE, PREPARING),
        "leave by instance": (NONE, PREPARING),
    },
    COMPLETING: {
        "a new member": (ID, COMPLETING),
        "a pending one": (PENDING, PREPARING),
        "a static new one": (PENDING, PREPARING),
        "a static one returns": (PENDING, PREPARING),
        "the leader": (NONE, COMPLETING),
        "a follower": (NONE, COMPLETING),
        "a follower changed": (PENDING, PREPARING),
        "sync": (PENDING, COMPLETING),
        "sync of the leader": (NONE, STABLE),
        "beat": (NONE, COMPLETING),
        "poll": (PENDING, COMPLETING),
        "commit": (REBALANCE, COMPLETING),
        "leave": (NONE, PREPARING),
        "leave by instance": (NONE, PREPARING),
    },
    STABLE: {
        "a new member": (ID, STABLE),
        "a pending one": (PENDING, PREPARING),
        "a static new one": (PENDING, PREPARING),
        "a static one returns": (NONE, STABLE),
        "the leader": (PENDING, PREPARING),
        "a follower": (NONE, STABLE),
        "a follower changed": (PENDING, PREPARING),
        "sync": (NONE, STABLE),
        "sync of the leader": (NONE, STABLE),
        "beat": (NONE, STABLE),
        "poll": (PENDING, STABLE),
        "commit": (NONE, STABLE),
        "leave": (NONE, PREPARING),
        "leave by instance": (NONE, PREPARING),
    },
    DEAD: {
        "a new member": (ID, EMPTY),
        "a pending one": (ID, EMPTY),  # it has no id here
        "a static new one": (NONE, COMPLETING),
        "a static one returns": (NONE, COMPLETING),
        "commit": (OLD, DEAD),
        "commit old": (OLD, DEAD),
        "commit simple": (NONE, EMPTY),
        "commit of a pending one": (OLD, DEAD),
        "commit fenced": (OLD, DEAD),
    },
}
"""State, who asks: the answer (PENDING: none yet) and the state after it."""

for _state in (PREPARING, COMPLETING, STABLE):
    TABLE[_state] |= {
        "a stranger": (UNKNOWN, _state),
        "a fenced one": (FENCED, _state),
        "sync of a pending one": (UNKNOWN, _state),
        "sync old": (OLD, _state),
        "sync fenced": (FENCED, _state),
        "beat old": (OLD, _state),
        "beat fenced": (FENCED, _state),
        "commit old": (OLD, _state),
        "commit simple": (UNKNOWN, _state),
        "commit of a pending one": (UNKNOWN, _state),
        "commit fenced": (FENCED, _state),
        "leave of a pending one": (NONE, _state),
        "leave of a stranger": (UNKNOWN, _state),
        "leave fenced": (FENCED, _state),
    }
for _asks in ASKS:
    TABLE[DEAD].setdefault(_asks, (UNKNOWN, DEAD))


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize("state", GroupState, ids=lambda state: state.value)
def test_each_state_answers_as_its_comment_says(state: GroupState, asks: str) -> None:
    known = in_state(state)
    shell = known.shell
    token = shell.send(ASKS[asks](known))
    answer = shell.answers.get(token)
    if isinstance(answer, LeaveGroupResponse):
        code: ErrorCode | None = ErrorCode(answer.members[0].error_code)
    else:
        code = None if answer is None else code_of(answer)
    after = shell.group.state if shell.group is not None else DEAD
    assert (code, after) == TABLE[state][asks]


def test_the_table_is_whole_and_its_ways_are_those_of_the_core() -> None:
    """One request may go through PreparingRebalance when no member has to be waited for."""
    for state in GroupState:
        assert set(TABLE[state]) == set(ASKS)
        for _, after in TABLE[state].values():
            made_anew = state is DEAD
            through = after in TRANSITIONS[PREPARING] and (PREPARING in TRANSITIONS[state] or state is PREPARING)
            assert after is state or after in TRANSITIONS[state] or through or made_anew


def test_every_way_of_the_table_of_the_core_is_gone_in_some_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no state is left that nothing leads to, and no way that nothing goes."""
    gone: set[tuple[GroupState, GroupState]] = set()
    original = Group.transition

    def transition(group: Group, target: GroupState) -> None:
        gone.add((group.state, target))
        original(group, target)

    monkeypatch.setattr(Group, "transition", transition)
    for state in (EMPTY, PREPARING, COMPLETING, STABLE):
        known = in_state(state)
        known.shell.obey(known.shell.core.unload(step_of(known.shell.core, known.shell.now())))
        known = in_state(state)
        known.shell.advance(1_000_000)
    assert gone == {(source, target) for source, targets in TRANSITIONS.items() for target in targets}
