"""A commit that came before its writes were acknowledged goes to its coordinator once they are stored, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from coordinator.log.producers import WrittenBatch
from coordinator.runtime.held_commits import AHEAD_S, HOLD_S, MAX_HELD, MAX_WRITES, HeldCommit, HeldCommits
from protocol.messages.transactions import EndTxnRequest, LastSequence, UnacknowledgedTopic
from tests.coordinator.runtime.test_admission import Alarm

MINE = (7, 3)
TP = ("t", 0)


class Log:
    """A log of which a test says what is appended and what is stored."""

    def __init__(self) -> None:
        self.last: dict[tuple[int, int], int] = {}
        self.waiting: list[Callable[[Exception | None], None]] = []
        self.looks = 0

    def last_written(self, producer_id: int, epoch: int) -> WrittenBatch | None:
        self.looks += 1
        last = self.last.get((producer_id, epoch))
        return None if last is None else WrittenBatch(0, last, 0, last + 1)

    def when_committed(self, offset: int, callback: Callable[[Exception | None], None]) -> None:
        self.waiting.append(callback)

    def store(self, error: Exception | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback(error)


class Node:
    """What became of each commit, in order: "go on", or why it was refused."""

    def __init__(self) -> None:
        self.logs = {TP: Log(), ("t", 1): Log()}
        self.alarms: list[Alarm] = []
        self.became: list[str] = []
        self.current = True
        self.at_rest = False
        """Whether the coordinator may decide ahead."""
        self.commits = HeldCommits(lambda topic, partition: self.logs.get((topic, partition)), self._call_later)

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Alarm:
        alarm = Alarm(seconds, call)
        self.alarms.append(alarm)
        return alarm

    def commit(self, writes: Mapping[tuple[str, int], int], transaction: tuple[int, int] = MINE) -> HeldCommit | None:
        topics = tuple(UnacknowledgedTopic(t, (LastSequence(p, last),)) for (t, p), last in writes.items())
        return self.enter(EndTxnRequest("id", *transaction, True, unacknowledged=topics))

    def enter(self, request: EndTxnRequest) -> HeldCommit | None:
        return self.commits.enter(
            request,
            lambda: self.current,
            lambda: self.became.append("go on"),
            lambda why: self.became.append(why),
            self._ahead,
        )

    def _ahead(self) -> Callable[[str], None] | None:
        if not self.at_rest:
            return None
        self.became.append("decided")
        return lambda why: self.became.append(f"void: {why}" if why else "written")

    def append(self, tp: tuple[str, int], last: int, transaction: tuple[int, int] = MINE) -> None:
        self.logs[tp].last[transaction] = last
        self.commits.appended(transaction, *tp)


def test_a_commit_goes_on_when_the_last_of_its_writes_is_stored() -> None:
    node = Node()
    assert node.commit({TP: 4, ("t", 1): 0}) is not None
    node.append(TP, 3)
    node.append(TP, 4)
    node.logs[TP].store()
    node.append(("t", 1), 0)
    assert not node.became, "appended is not stored"
    node.logs["t", 1].store()
    assert node.became == ["go on"]
    assert node.alarms[0].cancelled
    assert not len(node.commits)


def test_what_is_stored_already_is_not_waited_for() -> None:
    node = Node()
    log = node.logs[TP]
    log.last[MINE] = 4
    log.when_committed = lambda offset, callback: callback(None)  # type: ignore[method-assign]
    assert node.commit({TP: 4}) is None
    assert node.became == ["go on"]
    assert not len(node.commits)


def test_few_commits_of_one_transaction_are_held_and_the_next_is_told_to_come_again() -> None:
    node = Node()
    held = [node.commit({TP: 4}) for _ in range(MAX_HELD + 3)]
    assert [each is not None for each in held] == [True] * MAX_HELD + [False] * 3
    assert node.became == [f"{MAX_HELD} commits of it wait already"] * 3
    assert node.commit({TP: 4}, (8, 0)) is not None, "of another transaction"
    assert held[0] is not None
    held[0].drop()  # its connection closed
    assert node.commit({TP: 4}) is not None
    node.append(TP, 4)
    node.logs[TP].store()
    assert node.became[3:] == ["go on"] * MAX_HELD


def test_a_write_looks_at_its_own_partition_only() -> None:
    node = Node()
    writes = {("t", partition): 4 for partition in range(MAX_WRITES)}
    node.logs = {tp: Log() for tp in writes}
    for _ in range(MAX_HELD):
        node.commit(writes)
    looked = sum(log.looks for log in node.logs.values())
    for tp in writes:
        node.append(tp, 3)
    assert sum(log.looks for log in node.logs.values()) - looked == MAX_HELD * MAX_WRITES
    for tp in writes:
        node.append(tp, 4)
        node.logs[tp].store()
    assert node.became == ["go on"] * MAX_HELD


@pytest.mark.parametrize(("last", "transaction"), [(3, MINE), (5, MINE), (4, (7, 2)), (4, (8, 3))])
def test_other_writes_do_not_count(last: int, transaction: tuple[int, int]) -> None:
    node = Node()
    node.commit({TP: 4})
    node.append(TP, last, transaction)
    node.commits.appended(MINE, *TP)
    node.logs[TP].store()
    assert not node.became
    assert node.alarms[0].delay_s == HOLD_S
    node.alarms[0].call()
    assert node.became == ["its writes have not come within 5 s"]
    assert not len(node.commits)
    node.append(TP, 4)
    node.logs[TP].store()
    assert len(node.became) == 1


def test_a_write_that_the_disk_refuses_or_that_is_refused_itself_ends_the_wait() -> None:
    node = Node()
    node.commit({TP: 4})
    node.append(TP, 4)
    node.logs[TP].store(OSError("no space left"))
    node.commit({TP: 4})
    node.commits.give_up(MINE, "a write was refused")
    node.commits.give_up((7, 4), "of another")
    assert node.became == ["a write to t-0 was not stored: no space left", "a write was refused"]
    assert not len(node.commits)


def test_a_log_that_cannot_be_seen_here_and_too_many_partitions_are_refused_at_once() -> None:
    node = Node()
    assert node.commit({TP: 0, ("elsewhere", 0): 0}) is None
    assert node.commit({("t", number): 0 for number in range(MAX_WRITES + 1)}) is None
    assert node.became == [
        "what is written to elsewhere-0 cannot be seen here",
        "a commit waits for at most 256 partitions, and this one names 257",
    ]
    assert not len(node.commits)


def test_an_abort_ends_what_is_held_and_goes_on() -> None:
    node = Node()
    node.commit({TP: 4})
    node.enter(EndTxnRequest("id", 7, 4, False))
    assert node.became == ["go on"], "the abort of another transaction"
    node.enter(EndTxnRequest("id", *MINE, False))
    assert node.became[1:] == ["its producer wants the transaction aborted", "go on"]


def test_what_names_no_writes_or_is_over_is_not_held() -> None:
    node = Node()
    node.enter(EndTxnRequest("id", *MINE, True))
    node.current = False
    node.commit({TP: 4})
    assert node.became == ["go on", "go on"]


def test_a_commit_whose_connection_is_gone_is_dropped_and_its_repetition_is_held() -> None:
    node = Node()
    first = node.commit({TP: 4})
    assert first is not None
    again = node.commit({TP: 4})
    assert again is not None
    assert len(node.commits) == 2
    first.drop()
    node.append(TP, 4)
    node.logs[TP].store()
    assert node.became == ["go on"]
    assert not len(node.commits)
    assert all(alarm.cancelled for alarm in node.alarms)


# --- decided ahead ---------------------------------------------------------------------------------------------------


def test_a_commit_is_decided_when_its_last_write_is_appended_and_written_when_all_are_stored() -> None:
    node = Node()
    node.at_rest = True
    assert node.commit({TP: 4, ("t", 1): 0}) is not None
    node.append(TP, 4)
    assert not node.became, "one write has not come"
    node.append(("t", 1), 0)
    assert node.became == ["decided"]
    node.logs[TP].store()
    assert node.became == ["decided"], "one is not stored"
    node.logs["t", 1].store()
    assert node.became == ["decided", "written"]
    assert node.alarms[0].cancelled
    assert not len(node.commits)


def test_a_commit_that_comes_behind_its_writes_is_decided_at_once_and_cannot_be_dropped() -> None:
    node = Node()
    node.at_rest = True
    node.append(TP, 4)
    assert node.commit({TP: 4}) is None, "its connection has nothing to drop"
    assert node.became == ["decided"]
    node.commits.give_up(MINE, "another write was refused")
    node.enter(EndTxnRequest("id", *MINE, False))
    assert node.became == ["decided", "go on"], "an abort is for the coordinator to answer"
    node.logs[TP].store()
    assert node.became == ["decided", "go on", "written"]


def test_what_is_decided_ahead_is_void_when_a_write_is_not_stored_or_takes_too_long() -> None:
    node = Node()
    node.at_rest = True
    node.append(TP, 4)
    node.commit({TP: 4})
    node.logs[TP].store(OSError("no space left"))
    node.commit({TP: 4})
    node.alarms[-1].call()
    node.logs[TP].store()
    assert node.became == [
        "decided", "void: a write to t-0 was not stored: no space left",
        "decided", "void: its writes were not on disk within 15 s",
    ]  # fmt: skip
    assert not len(node.commits)


def test_writes_that_come_at_the_last_moment_leave_the_disk_its_time() -> None:
    """What a coordinator decided since is void when the time is over: no producer may choose that."""
    node = Node()
    node.at_rest = True
    node.commit({TP: 4})
    assert [(each.delay_s, each.cancelled) for each in node.alarms] == [(HOLD_S, False)]
    node.append(TP, 4)
    assert [(each.delay_s, each.cancelled) for each in node.alarms] == [(HOLD_S, True), (AHEAD_S, False)]
    node.logs[TP].store()
    assert node.became == ["decided", "written"]
    assert all(each.cancelled for each in node.alarms)


def test_a_commit_is_held_when_the_coordinator_is_not_at_rest_and_goes_on_as_ever() -> None:
    node = Node()
    node.append(TP, 4)
    assert node.commit({TP: 4}) is not None
    node.at_rest = True
    node.logs[TP].store()
    assert node.became == ["go on"]
    log = node.logs[TP]
    log.when_committed = lambda offset, callback: callback(None)  # type: ignore[method-assign]
    node.commit({TP: 4})
    assert node.became == ["go on", "go on"], "there is nothing to be ahead of"


def test_a_commit_that_was_dropped_before_its_writes_came_is_not_decided() -> None:
    node = Node()
    node.at_rest = True
    held = node.commit({TP: 4})
    assert held is not None
    held.drop()
    node.append(TP, 4)
    node.logs[TP].store()
    assert not node.became
