"""What must hold when offsets expire, and when groups and offsets are deleted; and for the bounds on who joins when.

The rules are written down apart from the core's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.groups.expiry import EXPIRY_TIMER
from coordinator.groups.group import Group
from coordinator.groups.records import GroupMetadataTombstone, OffsetCommitTombstone
from coordinator.groups.state import GroupState
from coordinator.runtime.effects import Effects, TimerName
from protocol.errors import ProtocolError
from protocol.messages.api import Response
from protocol.subscription import decode_subscription
from tests.simulation.core.call import DELETE_GROUPS, DELETE_OFFSETS, Call
from tests.simulation.core.client import TOPIC
from tests.simulation.core.invariants import ON_ARRIVAL, ON_CHANGE, ON_RESTART, ON_TIMER, SAMPLED, invariant
from tests.simulation.core.journal import TOMBSTONES
from tests.simulation.core.ledger import Ledger
from tests.simulation.core.plan import EXPIRY_MS, RETENTION_MS

if TYPE_CHECKING:
    from tests.simulation.core.shell import Shell


def note_deletion(call: Call, response: Any) -> None:
    """The answer to a DeleteGroups leaves: what it says is for good."""
    if not response.results[0].error_code:
        call.ledger.erased_up_to = max(call.ledger.erased_up_to, call.written)


@invariant(ON_TIMER)
def offsets_expire_by_the_rules_only(shell: Shell, name: TimerName, deadline_ms: int | None, effects: Effects) -> None:
    if name == EXPIRY_TIMER:
        cutoff_ms = shell.now_ms + shell.wall_offset_ms - RETENTION_MS
        for record in effects.records:
            # Applied by now: what it erased is in the log before it, and the group may be gone.
            group = shell.core.groups.get(record.group_id)
            if isinstance(record, OffsetCommitTombstone):
                _check_expired(shell, group, record, cutoff_ms)
            elif isinstance(record, GroupMetadataTombstone):
                assert group is None or not (group.members or group.offsets), (
                    f"{record.group_id} is erased under somebody"
                )


def _check_expired(shell: Shell, group: Group | None, record: OffsetCommitTombstone, cutoff_ms: int) -> None:
    before = iter(entry.record for entry in reversed(shell.journal.entries))
    assert any(one == record for one in before), "what is applied is written"
    committed: Any = next(one for one in before if isinstance(one, tuple) and one[:3] == _place(record))
    undecided = [
        pending.producer_id
        for pending in (group.pending_offsets.values() if group is not None else ())
        if any((one.topic, one.partition) == (record.topic, record.partition) and one.serial for one in pending.offsets)
    ]
    assert not undecided, f"{record}, which transactions of {undecided} are about to move"
    assert committed.commit_wall_ms <= cutoff_ms, f"{record} came {committed.commit_wall_ms - cutoff_ms} ms too early"
    if group is None or group.state is GroupState.EMPTY:
        durable = None if group is None else group.durable
        assert durable is None or durable.written_wall_ms <= cutoff_ms, (
            f"{record}: the group is not empty for long enough"
        )
    else:
        assert group.state is GroupState.STABLE, f"{record} in a group that is {group.state.value}"
        assert not _wants(group, record.topic), f"{record}, to which members subscribe"


def _place(record: OffsetCommitTombstone) -> tuple[str, str, int]:
    return record.group_id, record.topic, record.partition


def _wants(group: Group, topic: str) -> bool:
    """Whether some member reads a topic, or may do so; while a rebalance has chosen no protocol, with any of its own."""
    for member in group.members.values():
        for protocol in member.protocols:
            if group.state is GroupState.PREPARING_REBALANCE or protocol.name == group.protocol_name:
                try:
                    if topic in decode_subscription(protocol.metadata).topics:
                        return True
                except ProtocolError:
                    return True
    return False


@invariant()
def what_no_group_needs_expires(shell: Shell) -> None:
    """Long after all clients are gone nothing is left of any group, unless the wall clock was set back meanwhile."""
    late_ms = shell.now_ms + shell.wall_offset_ms - RETENTION_MS - 4 * EXPIRY_MS
    for group in shell.core.groups.values():
        times_ms = [offset[3] for offsets in group.offsets.values() for offset in offsets.values()]
        times_ms += [group.durable.written_wall_ms] if group.durable is not None else []
        assert any(time_ms > late_ms for time_ms in times_ms), f"{group.group_id} is empty and old, but still there"


@invariant(ON_ARRIVAL[DELETE_GROUPS])
def only_empty_groups_are_deleted(shell: Shell, call: Call, response: Response | None) -> None:
    answer: Any = response
    assert answer is not None, "a DeleteGroups waits"
    if not answer.results[0].error_code:
        assert call.ledger.state is GroupState.EMPTY, f"{call.ledger.group_id} was {call.ledger.state.value}"
        assert call.ledger.group_id not in shell.core.groups, f"{call.ledger.group_id} is deleted, but there"


@invariant(ON_ARRIVAL[DELETE_OFFSETS])
def offsets_in_use_are_not_deleted(shell: Shell, call: Call, response: Response | None) -> None:
    answer: Any = response
    assert answer is not None, "an OffsetDelete waits"
    if not answer.error_code and not answer.topics[0].partitions[0].error_code:
        group = shell.core.groups.get(call.ledger.group_id)
        assert group is None or not _wants(group, TOPIC), (
            f"{call.ledger.group_id}: members subscribe to what was deleted"
        )


@invariant(SAMPLED)
def an_answer_made_late_is_the_same(shell: Shell) -> None:
    """Many answers are made when they are sent, by then perhaps some decisions later: these must not show."""
    for make, about, response in shell.made:
        assert make(about) == response, f"{response} was decided, but {make(about)} would be sent"
    shell.made.clear()


@invariant(ON_RESTART)
def a_deleted_group_stays_deleted(shell: Shell, ledger: Ledger, group: Group) -> None:
    """What was written before somebody was told that the group is gone does not come back."""
    for entry in shell.journal.entries:
        if entry.ledger is ledger and entry.serial < ledger.erased_up_to:
            assert isinstance(entry.record, TOMBSTONES), f"{ledger.group_id} was deleted, but {entry.record} is back"


@invariant(ON_CHANGE)
def no_generation_is_larger_than_it_may_be(shell: Shell, ledger: Ledger, group: Group) -> None:
    """Of members that joined; static ones that are away keep their place until their session ends."""
    if group.generation > ledger.generation and group.state is GroupState.COMPLETING_REBALANCE:
        joined = sum(member.has_joined for member in group.members.values())
        assert joined <= shell.config.group_max_size, f"{joined} members of at most {shell.config.group_max_size}"


@invariant(ON_CHANGE)
def the_first_generation_waits_for_more(shell: Shell, ledger: Ledger, group: Group) -> None:
    """With an initial delay no group goes straight from Empty to a generation."""
    if shell.config.initial_rebalance_delay_ms and ledger.state is GroupState.EMPTY:
        assert group.state is not GroupState.COMPLETING_REBALANCE, "the first generation did not wait"
