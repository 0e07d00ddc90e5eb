"""Safeguards of transactions in particular, where the whole system is needed to see them. See ``ablations``.

Those of the coordinator's core, of the groups' core and of one log are switched off in the histories of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from unittest.mock import patch

from coordinator.log.partition import PartitionLog
from coordinator.runtime.admission import Admission
from coordinator.runtime.effects import Effects
from coordinator.runtime.held_commits import HeldCommit, HeldCommits
from coordinator.runtime.shard import CoordinatorShard
from coordinator.transactions import ending, loading
from coordinator.transactions import orders as transaction_orders
from coordinator.transactions.orders import MarkerEnd
from tests.simulation.safeguards import safeguard

_LISTS: Final = ("transacting",)
_COPIES: Final = ("producing", "transforming")
_ENDS: Final = ("client_is_killed", "requests_go_astray", "connections_reset")
_LATE: Final = ("requests_go_astray", "client_stalls", "client_is_killed", "slow_network")
_OUTCOMES: Final = ("transactions_are_whole", "outcomes_told_are_true", "no_transaction_hangs")
"""What breaks when a commit takes effect without its records."""
_FAILED_WRITES: Final[dict[str, Any]] = {
    "workloads": _LISTS,
    "faults": ("write_errors", "daemon_loses_power_while_it_writes"),
    "fault_pause_s": 0.5,
}
"""Plans of ablations about commits that come before their records are on disk."""


@safeguard(
    "leaders ask the coordinator before the first write of a transaction",
    "no_transaction_hangs",
    "open_in_a_log_is_known_to_its_coordinator",
    workloads=_LISTS,
    faults=_ENDS,
)
def admission_by_the_coordinator() -> Iterator[None]:
    def enter(admission: Admission, name: Any, writes: Iterable[Any]) -> None:
        for write in writes:
            write.proceed()

    with patch.object(Admission, "enter", enter):
        yield


@safeguard(
    "a transaction that nobody ends is aborted by its timeout",
    "no_transaction_hangs",
    "groups_settle_after_the_last_fault",
    first=28,
    workloads=_LISTS,
    faults=("client_is_killed",),
)
def transaction_timeout() -> Iterator[None]:
    with patch.object(ending, "on_timeout", lambda *_: None):
        yield


@safeguard(
    "after a load the markers of what is decided leave again",
    "no_transaction_hangs",
    "groups_settle_after_the_last_fault",
    workloads=_LISTS,
    faults=("daemon_is_killed", "daemon_is_killed_while_it_writes"),
)
def markers_after_a_load() -> Iterator[None]:
    with patch.object(loading, "order_markers", lambda *_: None):
        yield


@safeguard(
    "a commit that came before its writes were acknowledged is held until they are stored",
    *_OUTCOMES,
    **_FAILED_WRITES,
)
def held_commits_look_at_their_writes() -> Iterator[None]:
    def hold(commits: HeldCommits, transaction: Any, writes: Any, go_on: Callable[[], None], *_: Any) -> HeldCommit:
        held = HeldCommit(commits, (-1, -1), {}, go_on, lambda why: None)
        held.go_on_if_stored()
        return held

    with patch.object(HeldCommits, "hold", hold):
        yield


@safeguard(
    "a commit that is decided ahead is written when its writes are on disk",
    *_OUTCOMES,
    **_FAILED_WRITES,
)
def decisions_wait_for_their_records() -> Iterator[None]:
    def submit_ahead(shard: CoordinatorShard[Any], request: Any, context: Any) -> Callable[[str], None]:
        shard.submit(request, context)
        return lambda why_not: None

    with patch.object(CoordinatorShard, "submit_ahead", submit_ahead):
        yield


@safeguard(
    "an aborted transaction is not read",
    "aborted_records_are_never_read",
    workloads=_LISTS,
    faults=("client_is_killed",),
)
def aborted_batches_are_left_out() -> Iterator[None]:
    original = PartitionLog.read

    async def read(log: PartitionLog, offset: int, max_bytes: int, committed: bool = False) -> bytes:
        return await original(log, offset, max_bytes)

    with patch.object(PartitionLog, "read", read):
        yield


@safeguard(
    "what is not decided is not read",
    "undecided_records_are_never_read",
    "aborted_records_are_never_read",
    workloads=_LISTS,
    faults=("client_is_killed",),
)
def reads_end_at_the_stable_offset() -> Iterator[None]:
    with patch.object(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark)):
        yield


@safeguard(
    "an abort reaches the partitions as an abort",
    "outcomes_told_are_true",
    "aborted_records_are_never_read",
    workloads=_LISTS,
    faults=("client_is_killed",),
)
def aborts_are_marked_as_such() -> Iterator[None]:
    def end(producer_id: int, epoch: int, committed: bool) -> Any:
        return MarkerEnd(producer_id, epoch, True)

    with patch.object(transaction_orders, "MarkerEnd", end):
        yield


@safeguard(
    "orders leave when the decision is on disk",
    "transactions_are_whole",
    "outcomes_told_are_true",
    workloads=_LISTS,
    faults=("daemon_loses_power_while_it_writes", "daemon_loses_power", "write_errors"),
    fault_pause_s=0.5,
)
def markers_behind_the_decision() -> Iterator[None]:
    original = CoordinatorShard._conclude

    def early(shard: CoordinatorShard[Any], effects: Effects) -> None:
        orders, effects.orders = effects.orders, None
        for order in orders or ():
            shard._carry_out(shard, order)
        original(shard, effects)

    with patch.object(CoordinatorShard, "_conclude", early):
        yield
