"""Whatever members do, in whatever order, whatever connections and timers do to them: the laws of ``model.Shell`` hold."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.groups.config import GroupConfig
from coordinator.groups.state import GroupState
from protocol.errors import ErrorCode
from protocol.messages.groups import JoinGroupResponse
from tests.coordinator.groups.model import Shell, code_of, commit, heartbeat, join, leave, sync
from tests.coordinator.groups.steps import step_of

ACTIONS = (
    "new", "new changed", "ask", "join pending", "leave pending",
    "static", "static", "static changed", "static old", "static poll", "static sync", "remove static",
    "join", "join", "join changed", "sync", "sync", "sync", "heartbeat", "poll", "leave", "leave both",
    "commit", "commit old", "commit simple", "abandon", "advance", "advance far", "fire late", "restart", "twice",
    "cooperate", "cooperate", "cooperate", "cooperate", "new", "poll",
)  # fmt: skip

STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 4), st.integers(1, 4000)), max_size=60)


class Members:
    """What members know: their ids, and the generation they heard of last."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.generations: dict[str, int] = {}

    def listen(self) -> None:
        """Takes the answers to joins that came meanwhile."""
        for answer in self.shell.answers.values():
            if isinstance(answer, JoinGroupResponse) and code_of(answer) is ErrorCode.NONE:
                self.generations[answer.member_id] = max(
                    answer.generation_id, self.generations.get(answer.member_id, 0)
                )

    def pick(self, index: int) -> tuple[str, int]:
        """One of the members that the group has, mostly; or one of those that ever were, or a stranger."""
        group = self.shell.group
        living = [name for name in group.members if name in self.generations] if group is not None else []
        names = living if living and index else list(self.generations)
        if not names:
            return "stranger", 1
        member_id = names[index % len(names)]
        return member_id, self.generations[member_id]

    def cooperate(self) -> None:
        """Every member does what the group asks for: joins while it prepares, then syncs, the leader last."""
        group = self.shell.group
        if group is None:
            return
        names = [name for name in group.members if name in self.generations and name != group.leader]
        if group.state is GroupState.PREPARING_REBALANCE:
            for name in [*names, group.leader]:
                if name in self.generations and name in group.members and not group.members[name].has_joined:
                    self.shell.send(join(name, instance=group.members[name].group_instance_id))
        elif group.state is GroupState.COMPLETING_REBALANCE:
            shares = {name: name.encode() for name in group.members}
            for name in [*names, group.leader]:
                if name in group.members:
                    self.shell.send(sync(name, group.generation, shares))


def act(shell: Shell, members: Members, action: str, index: int, amount: int) -> None:
    """One step of a history."""
    members.listen()
    member_id, generation = members.pick(index)
    protocols = ("range", "range,sticky", "sticky,range")[amount % 3]
    if action == "cooperate":
        members.cooperate()
    elif action.startswith("new"):
        shell.enter(join(protocols=protocols if "changed" in action else "range", session_ms=1000 + amount))
    elif action == "ask":
        shell.send(join(session_ms=1000 + amount))
    elif action.endswith("pending"):
        given = list(shell.group.pending) if shell.group is not None else []
        if given:
            given_id = given[index % len(given)]
            shell.send(join(given_id) if action == "join pending" else leave(given_id))
    elif "static" in action:
        _act_static(shell, members, action, f"i{index % 3}", amount)
    elif action in ("join", "twice"):
        for _ in range(2 if action == "twice" else 1):
            shell.send(join(member_id))
    elif action == "join changed":
        shell.send(join(member_id, protocols, metadata=str(amount % 5).encode()))
    elif action == "sync":
        shares = {name: name.encode() for name in (shell.group.members if shell.group else ())}
        shell.send(sync(member_id, generation, shares))
    elif action in ("heartbeat", "poll"):
        shell.send(heartbeat(member_id, generation, amount if action == "poll" else 0))
    elif action.startswith("leave"):
        shell.send(leave(member_id, *([members.pick(index + 1)[0]] if action == "leave both" else [])))
    elif action == "commit":
        _commit(shell, member_id, generation, amount)
    elif action == "commit old":
        _commit(shell, member_id, generation - 1, amount)
    elif action == "commit simple":
        _commit(shell, "", -1, amount)
    elif action == "abandon" and shell.waiting and index % 2:
        shell.abandon(list(shell.waiting)[index % len(shell.waiting)])
    elif action == "abandon" and shell.tokens:
        shell.abandon(shell.tokens - index % min(8, shell.tokens))
    elif action.startswith("advance"):
        shell.advance(amount * (20 if "far" in action else 1))
    elif action == "fire late" and shell.timers:
        shell.fire_late(sorted(shell.timers)[index % len(shell.timers)])
    elif action == "restart":
        shell.restart()


def _act_static(shell: Shell, members: Members, action: str, instance: str, amount: int) -> None:
    """A static member is started, or started again; or one of the processes that ever had its instance id speaks."""
    ids = [name for name in members.generations if name.startswith(f"{instance}-")] or ["stranger"]
    old_id = ids[amount % len(ids)]
    generation = shell.group.generation if shell.group is not None else 1
    current = shell.group.instances.get(instance) if shell.group is not None else None
    if action in ("static", "static changed"):
        protocols = ("range", "range,sticky", "sticky,range")[amount % 3] if "changed" in action else "range"
        shell.send(join("", protocols, instance=instance, session_ms=1000 + amount))
    elif action == "remove static":
        shell.send(leave("", instance=instance))
    else:
        if action == "static old":
            answer = shell.answers.get(token := shell.send(join(old_id, instance=instance)))
        elif action == "static sync":
            answer = shell.answers.get(token := shell.send(sync(old_id, generation, {}, instance)))
        else:
            answer = shell.answers.get(token := shell.send(heartbeat(old_id, generation, amount, instance)))
        if current is not None and current != old_id:
            assert answer is not None, f"request {token} of a process that was replaced waits"
            assert code_of(answer) is ErrorCode.FENCED_INSTANCE_ID


def _commit(shell: Shell, member_id: str, generation: int, offset: int) -> None:
    """Commits, and checks the one law that a commit has: only the current generation writes, others change nothing."""
    group = shell.group
    before = len(shell.log)
    allowed = (
        generation < 0 and not (group and group.members)
        if not (group and member_id in group.members)
        else generation == group.generation
    )
    answer = shell.answers[shell.send(commit(member_id, generation, offset % 4, offset))]
    if not allowed:
        assert code_of(answer) is not ErrorCode.NONE
        assert len(shell.log) == before
    elif code_of(answer) is ErrorCode.NONE:
        assert len(shell.log) == before + 1


@settings(max_examples=300, deadline=None)
@given(STEPS, st.sampled_from([0, 0, 700]), st.sampled_from([3, 50_000]))
def test_every_history_keeps_the_laws(steps: list[tuple[str, int, int]], delay_ms: int, max_size: int) -> None:
    shell = Shell(
        GroupConfig(min_session_timeout_ms=1000, initial_rebalance_delay_ms=delay_ms, group_max_size=max_size)
    )
    members = Members(shell)
    for action, index, amount in steps:
        act(shell, members, action, index, amount)
    _settles(shell)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_unloading_leaves_no_request_pending_and_no_timer(steps: list[tuple[str, int, int]]) -> None:
    shell = Shell(GroupConfig(min_session_timeout_ms=1000))
    members = Members(shell)
    for action, index, amount in steps:
        act(shell, members, action, index, amount)
    waiting = list(shell.waiting)
    shell.obey(shell.core.unload(step_of(shell.core, shell.now())))
    assert not shell.waiting
    assert not shell.timers
    assert all(code_of(shell.answers[token]) is ErrorCode.NOT_COORDINATOR for token in waiting)


def test_long_histories_keep_the_laws_and_see_every_state() -> None:
    seen: set[tuple[GroupState, int]] = set()
    for seed in range(60):
        rng = random.Random(seed)
        shell = Shell(GroupConfig(min_session_timeout_ms=1000))
        members = Members(shell)
        for _ in range(200):
            act(shell, members, rng.choice(ACTIONS), rng.randrange(5), rng.randrange(1, 1500))
            if shell.group is not None:
                seen.add((shell.group.state, len(shell.group.members)))
        _settles(shell)
    several = {state for state, size in seen if size >= 3}
    assert several == {GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    assert (GroupState.EMPTY, 0) in seen


def _settles(shell: Shell) -> None:
    """Left alone, a group that no client speaks for is Empty in the end, and every request has its answer."""
    shell.advance(400_000)
    assert not shell.waiting
    assert not shell.timers
    assert shell.group is None or not shell.group.members
