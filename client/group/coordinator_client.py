"""The group protocol as one member speaks it, on the background loop: join, assign when leading, sync, leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, Protocol

from client.errors import ClosedError, CohortError, error_for
from client.group.config import MembershipSettings
from client.group.heartbeat import Heartbeats
from client.group.session import Event, Generation, Progress, RejoinNeeded, Session
from client.log import get_logger
from client.transport.cluster import Cluster
from client.transport.deadline import Deadline
from client.transport.metadata import Topology
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)

_PENDING_MARGIN_MS: Final = 5_000
_LEAVE_TIMEOUT_MS: Final = 3_000
_MAX_REASON_CHARS: Final = 1_000
"""A reason is for people, and may quote an error of any length; the daemon keeps 255 characters by default."""
_BLOCKED_S: Final = 1.0
"""A program that has not heard for so long that the group rebalances blocks its loop: it is joined for."""
_NO_LONGER_A_MEMBER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})

log = get_logger()


class Assigner(Protocol):
    """Computes the assignment when this member leads. Called on the background loop."""

    async def assign(
        self, cluster: Cluster, protocol: str, members: Sequence[JoinGroupMember], leader: str
    ) -> Mapping[str, bytes]:
        """Each member's share by member id, that of the ``leader``, this member, included; others get nothing."""
        ...

    async def watch(self, cluster: Cluster, members: Sequence[JoinGroupMember], share: bytes) -> None:
        """Looks from now on whether the assignment in force still fits, of which this member has ``share``.

        It is that of a process before this one, and is not to be computed again (KIP-814).
        """
        ...

    def outdated(self, topology: Topology) -> str | None:
        """Why the last assignment does not fit ``topology`` any more, or None while it does."""
        ...


class CoordinatorClient:
    """One member's requests to its coordinator. Made on any loop, then used on the background loop only."""

    def __init__(
        self,
        settings: MembershipSettings,
        assigner: Assigner,
        progress: Progress,
        post: Callable[[Event], None],
        owner_gone: Callable[[], bool],
        standing_protocols: Callable[[], Sequence[tuple[str, bytes]] | None],
        random: Random,
    ) -> None:
        self._settings = settings
        self._assigner = assigner
        self._post_to_program = post
        self._standing_protocols = standing_protocols
        self._random = random
        self._heartbeats = Heartbeats(settings, progress, self._post, self.leave, owner_gone, self._abandon)
        self._rejoin_task: asyncio.Task[None] | None = None
        self._is_rejoining = False  # whether that joins at this moment
        self._rejoined: Generation | None = None  # what it has joined, and the program not yet
        self._cluster: Cluster | None = None
        self._closed = False
        self._member_id = ""
        self._session: Session | None = None

    async def join(
        self, protocols: Sequence[tuple[str, bytes]], reason: str, *, keeps: bool = False, held: Session | None = None
    ) -> Generation:
        """One attempt to get into a generation, heartbeats under way at its end.

        ``keeps`` makes the session one of a member that holds its share when the group rebalances. ``held`` is the session
        whose share is held while the generation forms: its heartbeats go on until the new one's begin. Raises the
        coordinator's error; ``UnknownMemberIdError``, ``FencedInstanceIdError`` and ``IllegalGenerationError`` mean that
        what the member held is gone.

        When the background has joined meanwhile (``_rejoin_for_program``), its generation is returned, with what was
        asked for then.
        """
        rejoined = await self._take_rejoined()
        if rejoined is not None:
            return rejoined
        return await self._join_generation(protocols, reason, keeps=keeps, held=held)

    async def _join_generation(
        self, protocols: Sequence[tuple[str, bytes]], reason: str, *, keeps: bool, held: Session | None
    ) -> Generation:
        cluster = await self._ready()
        time = asyncio.get_running_loop().time
        before = held.latest if held is not None else None
        if before is not None:
            before.rejoining = before.keeps = True
        else:
            # A pending join holds the session by itself, and the old generation's heartbeats would be refused after it.
            self._heartbeats.end()
        joining_s = time()
        response = await self._join(cluster, protocols, reason)
        if before is not None:
            self._check_still_held(before, time())
        leads = response.leader == response.member_id
        session = Session(response.member_id, response.generation_id, leads, response.rebalance_reason, keeps=keeps)
        session.confirmed(joining_s, self._settings)
        if before is not None:
            session.expires_s = max(session.expires_s, before.expires_s)
            before.successor = session
        self._session = session
        self._heartbeats.begin(cluster, session)
        plan = await self._plan(cluster, response) if leads and not response.skip_assignment else {}
        syncing_s = time()
        synced = await self._sync(cluster, session, response, plan)
        session.confirmed(syncing_s, self._settings)
        if leads and response.skip_assignment:
            await self._watch(cluster, session, response, synced.assignment)
        return Generation(session, response.protocol_name or "", synced.assignment)

    async def leave(self, reason: str, *, in_the_way: bool = False) -> None:
        """Leaves the group if this is a member, waiting a few seconds at most.

        Never fails: a member that could not leave is removed when its session ends. So is a static member, which does not
        leave (KIP-345): it is to find its share when it comes back. Unless it is ``in_the_way`` of the others.
        """
        self._heartbeats.end()
        if self._rejoin_task is not None and self._rejoin_task is not asyncio.current_task():
            self._rejoin_task.cancel()
        self._rejoined = None
        member_id, self._member_id = self._member_id, ""
        if self._session is not None and self._session.ended is None:
            self._session.ended = reason
        self._session = None
        instance_id = self._settings.group_instance_id
        if not member_id or self._cluster is None or (instance_id is not None and not in_the_way):
            return
        leaving = LeavingMember(member_id, instance_id, reason[:_MAX_REASON_CHARS])
        request = LeaveGroupRequest(self._settings.group_id, (leaving,))
        try:
            await self._cluster.call_coordinator(
                self._settings.group_id, request, LeaveGroupResponse, deadline=Deadline(_LEAVE_TIMEOUT_MS)
            )
        except CohortError as error:
            log.warning(
                "leave_group_failed",
                group=self._settings.group_id,
                member=member_id,
                error=str(error),
            )

    async def close(self) -> None:
        """Ends heartbeats and closes the connections, for good: also those that a join is about to open."""
        self._closed = True
        self._heartbeats.end()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()

    def _post(self, event: Event) -> None:
        self._post_to_program(event)
        if isinstance(event, RejoinNeeded) and (self._rejoin_task is None or self._rejoin_task.done()):
            name = f"cohort-rejoin-{event.session.member_id}"
            self._rejoin_task = asyncio.create_task(self._rejoin_for_program(event), name=name)

    async def _rejoin_for_program(self, event: RejoinNeeded) -> None:
        """Joins for a program that blocks its loop and goes on holding its share: others need not wait for that.

        Only what was given to others waits until the program comes back and gives it up. The next ``join`` takes the
        generation; until then this may happen again and again.
        """
        await asyncio.sleep(_BLOCKED_S)
        session = event.session
        if session is not self._session or session.ended is not None:
            return
        if self._rejoined is None and not (
            session.settled and self._standing_protocols() is not None and session.claim_rejoin("background")
        ):
            return
        protocols = self._standing_protocols()
        if protocols is None:
            return
        log.warning(
            "event_loop_blocked",
            group=self._settings.group_id,
            member=session.member_id,
            hint="its member rejoins in the background; partitions that go to other members wait for the program",
        )
        self._is_rejoining = True
        try:
            self._rejoined = await self._join_generation(protocols, event.reason, keeps=True, held=session)
        except Exception as error:  # the program joins by itself when it comes back, and is told then what is wrong
            log.info("background_rejoin_failed", group=self._settings.group_id, error=repr(error))
        finally:
            self._is_rejoining = False

    async def _take_rejoined(self) -> Generation | None:
        task = self._rejoin_task
        if task is not None and not task.done():
            if self._is_rejoining:
                await asyncio.wait([task])  # if this is cancelled, ``leave`` has to find it still
            else:
                task.cancel()
                self._rejoin_task = None
        rejoined, self._rejoined = self._rejoined, None
        return rejoined

    async def _abandon(self) -> None:
        await self.leave("the event loop of this member was closed without stop()")
        await self.close()

    async def _ready(self) -> Cluster:
        self._check_not_closed()
        if self._cluster is None:
            settings = self._settings
            # A request that hangs must not use up the whole session: there is to be time for two more.
            timeout_ms = min(settings.request_timeout_ms, max(1_000, settings.session_timeout_ms // 3))
            cluster = Cluster(
                settings.bootstrap_servers,
                client_id=settings.client_id,
                request_timeout_ms=timeout_ms,
                random=self._random,
            )
            try:
                await cluster.start()
                self._check_not_closed()
            except BaseException:
                await cluster.close()
                raise
            cluster.on_change(self._on_topology)
            self._cluster = cluster
        return self._cluster

    def _check_not_closed(self) -> None:
        if self._closed:
            raise ClosedError(f"this member of group {self._settings.group_id!r} was stopped")

    def _on_topology(self, topology: Topology) -> None:
        session = self._session
        if session is not None and session.is_leader and session.ended is None:
            reason = self._assigner.outdated(topology)
            if reason is not None:
                self._post(RejoinNeeded(session, reason))

    async def _join(self, cluster: Cluster, protocols: Sequence[tuple[str, bytes]], reason: str) -> JoinGroupResponse:
        settings = self._settings
        for _ in range(2):  # a new member is given its id first and asked to come again with it (KIP-394)
            request = JoinGroupRequest(
                group_id=settings.group_id,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                member_id=self._member_id,
                group_instance_id=settings.group_instance_id,
                protocol_type=settings.protocol_type,
                protocols=tuple(JoinGroupProtocol(name, metadata) for name, metadata in protocols),
                reason=reason[:_MAX_REASON_CHARS],
            )
            # A request for an id is answered at once; only a join is held until the generation is complete.
            is_held = bool(self._member_id) or settings.group_instance_id is not None
            wait_ms = settings.rebalance_timeout_ms + _PENDING_MARGIN_MS if is_held else 0
            response = await cluster.call_coordinator(settings.group_id, request, JoinGroupResponse, wait_ms=wait_ms)
            if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self._member_id = response.member_id
        self._check(response.error_code, response.error_message)
        self._member_id = response.member_id
        return response

    def _check_still_held(self, before: Session, now_s: float) -> None:
        """Raises ``IllegalGenerationError`` when the group may have gone on without a static member that it kept.

        A member with an id of its own that is still known has missed nothing. A static one is not taken out when it misses a
        rebalance (KIP-345), and what it held then goes to others: that it is let in again says nothing about its share.
        """
        if self._settings.group_instance_id is None or before.holds(now_s):
            return
        self._heartbeats.end()
        before.ended = before.ended or (
            f"this static member did not join again in time, and the group may have formed generations after "
            f"{before.generation} without it"
        )
        raise error_for(ErrorCode.ILLEGAL_GENERATION, f"group {self._settings.group_id!r}: {before.ended}")

    async def _plan(self, cluster: Cluster, response: JoinGroupResponse) -> Mapping[str, bytes]:
        try:
            protocol, members = response.protocol_name or "", response.members
            return await self._assigner.assign(cluster, protocol, members, response.member_id)
        except CohortError:
            raise
        except Exception as error:
            # The other members wait for this plan: with another leader they get one.
            await self.leave(f"the assignor failed: {error!r}", in_the_way=True)
            error.add_note(f"while computing the assignment of group {self._settings.group_id!r}")
            raise

    async def _watch(self, cluster: Cluster, session: Session, joined: JoinGroupResponse, share: bytes) -> None:
        await self._assigner.watch(cluster, joined.members, share)
        reason = self._assigner.outdated(cluster.topology)
        if reason is not None:
            self._post(RejoinNeeded(session, reason))

    async def _sync(
        self, cluster: Cluster, session: Session, joined: JoinGroupResponse, plan: Mapping[str, bytes]
    ) -> SyncGroupResponse:
        settings = self._settings
        request = SyncGroupRequest(
            group_id=settings.group_id,
            generation_id=session.generation,
            member_id=session.member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=tuple(SyncGroupAssignment(member_id, share) for member_id, share in plan.items()),
        )
        response = await cluster.call_coordinator(
            settings.group_id, request, SyncGroupResponse, wait_ms=settings.rebalance_timeout_ms + _PENDING_MARGIN_MS
        )
        self._check(response.error_code, response.error_message)
        return response

    def _check(self, code: int, message: str) -> None:
        if code == ErrorCode.NONE:
            return
        if code in _NO_LONGER_A_MEMBER or code == ErrorCode.GROUP_MAX_SIZE_REACHED:
            self._heartbeats.end()
            self._member_id = ""
            self._session = None
        what = f"group {self._settings.group_id!r}: {message}" if message else f"group {self._settings.group_id!r}"
        raise error_for(code, what)
