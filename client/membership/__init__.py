"""Membership of a group as a layer of its own: joining, heartbeats, rejoining, leaving.

``Membership`` lives on the user's loop and calls a ``Participant``; ``GroupSession`` and ``Heartbeats`` speak the protocol
on the background loop. ``Member`` and ``Consumer`` are two participants.
"""

from client.membership.callback import call_program
from client.membership.membership import DEFAULT_STOP_S, Membership
from client.membership.participant import Participant, State
from client.membership.session import Assigner, GroupSession
from client.membership.settings import MembershipSettings, check_instance_id, check_timing
from client.membership.types import Generation, Progress, Session

__all__ = [
    "DEFAULT_STOP_S",
    "Assigner",
    "Generation",
    "GroupSession",
    "Membership",
    "MembershipSettings",
    "Participant",
    "Progress",
    "Session",
    "State",
    "call_program",
    "check_instance_id",
    "check_timing",
]
