"""Keeps the observer's book on who owns what, answer by answer; see ``ledger``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from protocol.errors import ErrorCode
from protocol.messages.api import Response
from tests.simulation.core.call import (
    COMMIT,
    DELETE_GROUPS,
    DELETE_OFFSETS,
    FETCH,
    HEARTBEAT,
    JOIN,
    LEAVE,
    SYNC,
    TXN_COMMIT,
    Call,
)
from tests.simulation.core.client import PARTITIONS
from tests.simulation.core.invariants import ON_COMMIT, ON_GENERATION, ON_SHARE, ON_TXN_COMMIT

if TYPE_CHECKING:
    from tests.simulation.core.shell import Shell

FENCED: Final = (
    int(ErrorCode.ILLEGAL_GENERATION),
    int(ErrorCode.UNKNOWN_MEMBER_ID),
    int(ErrorCode.FENCED_INSTANCE_ID),
)
"""What tells a member that it owns nothing."""


def note(shell: Shell, call: Call, response: Response) -> None:
    """An answer was given."""
    kind = call.kind
    answer: Any = response
    request: Any = call.request
    if DELETE_GROUPS <= kind <= DELETE_OFFSETS:
        _note_erasure(shell, call, answer)
        return
    code = answer.topics[0].partitions[0].error_code if kind in (COMMIT, TXN_COMMIT) else answer.error_code
    ledger = call.ledger
    if code:
        told = code in FENCED and kind in (SYNC, HEARTBEAT, COMMIT, TXN_COMMIT)
        if told and request.generation_id == ledger.owned_generation(request.member_id):
            ledger.gives_up(request.member_id)
    elif kind == JOIN:
        for on_generation in ON_GENERATION:
            on_generation(shell, call, answer)
    elif kind == COMMIT:
        for on_commit in ON_COMMIT:
            on_commit(shell, call, request)
        partition = request.topics[0].partitions[0]
        shell.transactions.moved(ledger.group_id, partition.partition_index, partition.committed_offset)
    elif kind == TXN_COMMIT:
        for on_txn_commit in ON_TXN_COMMIT:
            on_txn_commit(shell, call, request)
        shell.transactions.accepted(call)
    elif kind == FETCH and shell.transactions.enabled:
        for found in answer.topics[0].partitions:
            known = shell.transactions.input(ledger.group_id, found.partition_index)
            call.versions[found.partition_index] = known.version
    elif kind == SYNC:
        for on_share in ON_SHARE:
            on_share(shell, call, request, answer.assignment)
        ledger.takes(request.member_id, request.generation_id, answer.assignment)
    elif kind == LEAVE:
        for left in answer.members:
            if not left.error_code:
                ledger.gives_up(left.member_id)


def _note_erasure(shell: Shell, call: Call, answer: Any) -> None:
    """What is erased begins anew, also what a transaction was about to commit."""
    group_id = call.ledger.group_id
    if call.kind == DELETE_GROUPS:
        if not answer.results[0].error_code:
            shell.transactions.erased(group_id, range(PARTITIONS))
    elif not answer.error_code and not answer.topics[0].partitions[0].error_code:
        shell.transactions.moved(group_id, answer.topics[0].partitions[0].partition_index, 0)
