"""Keeps the observer's book on who owns what, answer by answer; see ``ledger``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from protocol.errors import ErrorCode
from protocol.messages.api import Response
from tests.simulation.core.call import COMMIT, DELETE_GROUPS, HEARTBEAT, JOIN, LEAVE, SYNC, Call
from tests.simulation.core.invariants import ON_COMMIT, ON_GENERATION, ON_SHARE

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
    if kind >= DELETE_GROUPS:
        return
    code = answer.topics[0].partitions[0].error_code if kind == COMMIT else answer.error_code
    ledger = call.ledger
    if code:
        told = code in FENCED and kind in (SYNC, HEARTBEAT, COMMIT)
        if told and request.generation_id == ledger.owned_generation(request.member_id):
            ledger.gives_up(request.member_id)
    elif kind == JOIN:
        for on_generation in ON_GENERATION:
            on_generation(shell, call, answer)
    elif kind == COMMIT:
        for on_commit in ON_COMMIT:
            on_commit(shell, call, request)
    elif kind == SYNC:
        for on_share in ON_SHARE:
            on_share(shell, call, request, answer.assignment)
        ledger.takes(request.member_id, request.generation_id, answer.assignment)
    elif kind == LEAVE:
        for left in answer.members:
            if not left.error_code:
                ledger.gives_up(left.member_id)
