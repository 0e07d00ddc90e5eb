"""Membership of a group as a layer of its own: joining, heartbeats, rejoining, leaving.

``Membership`` lives on the user's loop and calls a ``Participant``; ``CoordinatorClient`` and ``Heartbeats`` speak the
protocol on the background loop. ``Member`` and ``Consumer`` are two participants.
"""

from client.group.config import MembershipSettings, check_instance_id, check_timing
from client.group.coordinator_client import Assigner, CoordinatorClient
from client.group.membership import DEFAULT_STOP_S, Membership, StopTurn
from client.group.participant import Participant, State, call_program
from client.group.session import Generation, Progress, Session

__all__ = [
    "DEFAULT_STOP_S",
    "Assigner",
    "Generation",
    "CoordinatorClient",
    "Membership",
    "MembershipSettings",
    "Participant",
    "Progress",
    "Session",
    "State",
    "StopTurn",
    "call_program",
    "check_instance_id",
    "check_timing",
]
