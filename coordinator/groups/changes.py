"""What a member says anew about itself when it joins again, in words.

The coordinator carries subscriptions as bytes, and any change of them lets members rejoin, as cooperative members do to
hand over what they gave up. Why it happens is another question: a member that says what it owns now has not changed its
mind. So what consumers say is read here, for people, and to tell whether a process that was started again wants what the
one before it wanted. Bytes that do not parse are compared as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from coordinator.groups.group import Group
from coordinator.groups.member import Member
from coordinator.groups.reasons import clipped, described
from protocol.errors import ProtocolError
from protocol.messages.groups import JoinGroupProtocol
from protocol.subscription import CONSUMER_PROTOCOL_TYPE, decode_subscription, decode_topics

_MAX_TOPICS_CHARS: Final = 100
_MAX_TOPICS: Final = 5


def rejoined(group: Group, member: Member, protocols: tuple[JoinGroupProtocol, ...]) -> str:
    """A known member comes with other ``protocols`` than before: what that means."""
    if not same_names(protocols, member.protocols):
        return f"{described(member)} offers {_listed_names(protocols)} instead of {_listed_names(member.protocols)}"
    before, after = _said(group, member.protocols, protocols)
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return f"{described(member)} changed its metadata"
    try:
        old, new = decode_topics(before), decode_topics(after)
    except ProtocolError:
        return f"{described(member)} changed its subscription"
    if set(old) != set(new):
        return f"{described(member)} changed its subscription from {_shown(old)} to {_shown(new)}"
    return f"{described(member)} rejoined"


def changed_topics(group: Group, member: Member, protocols: tuple[JoinGroupProtocol, ...]) -> str | None:
    """The sentence for a member whose topics are others now; None if they are not, or cannot be told."""
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    before, after = _said(group, member.protocols, protocols)
    try:
        changed = set(decode_topics(before)) != set(decode_topics(after))
    except ProtocolError:
        return None
    return rejoined(group, member, protocols) if changed else None


def wants_otherwise(group: Group, member: Member, protocols: tuple[JoinGroupProtocol, ...]) -> str | None:
    """What a static member that was started again wants otherwise than the process before it; None if nothing.

    For consumers what they owned, and in which generation, does not count: a new process owns nothing.
    """
    before, after = _said(group, member.protocols, protocols)
    if before == after:
        return None
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return "changed its metadata"
    try:
        old, new = decode_subscription(before), decode_subscription(after)
    except ProtocolError:
        return "changed its subscription"
    if set(old.topics) != set(new.topics):
        return f"changed its subscription from {_shown(old.topics)} to {_shown(new.topics)}"
    if old.rack != new.rack:
        return f"moved from rack {clipped(old.rack or 'unknown', 60)} to {clipped(new.rack or 'unknown', 60)}"
    return "changed its user data" if old.user_data != new.user_data else None


def _said(
    group: Group, before: tuple[JoinGroupProtocol, ...], after: tuple[JoinGroupProtocol, ...]
) -> tuple[bytes, bytes]:
    """What is said to the protocol of the generation, or to one that both name, or nothing."""
    old = {protocol.name: protocol.metadata for protocol in before}
    new = {protocol.name: protocol.metadata for protocol in after}
    if group.protocol_name in old and group.protocol_name in new:
        return old[group.protocol_name], new[group.protocol_name]
    shared = next((name for name in new if name in old), None)
    return (b"", b"") if shared is None else (old[shared], new[shared])


def same_names(one: tuple[JoinGroupProtocol, ...], other: tuple[JoinGroupProtocol, ...]) -> bool:
    """Whether the same protocols are offered, in the same order."""
    return _names(one) == _names(other)


def _names(protocols: tuple[JoinGroupProtocol, ...]) -> list[str]:
    return [protocol.name for protocol in protocols]


def _listed_names(protocols: tuple[JoinGroupProtocol, ...]) -> str:
    return clipped(", ".join(_names(protocols)))


def _shown(topics: Iterable[str]) -> str:
    names = sorted(set(topics))
    more = f", and {len(names) - _MAX_TOPICS} more" if len(names) > _MAX_TOPICS else ""
    return "{" + clipped(", ".join(names[:_MAX_TOPICS]), _MAX_TOPICS_CHARS) + more + "}"
