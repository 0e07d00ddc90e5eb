"""The members of an etcd: a channel each, and which of them is asked.

``grpc``'s own choices over several addresses wait for a stopped member as long as it is stopped. So each has a channel, each
call a short deadline, and the next member is asked when one does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from coordinator.metadata.etcd import etcd_pb2 as pb
from coordinator.metadata.etcd.rpc import (
    Access,
    EtcdRefusedError,
    EtcdUnavailableError,
    LeaseOverError,
    Outcome,
    Pace,
    RevisionsForgottenError,
)

OLDEST: Final = (3, 5, 18)
"""Before it a watch could miss a deletion at a compaction, and logins fail that are right; before 3.5.13 a stalled member
could end leases that were alive, and 3.5.0 to 3.5.2 could lose what was written."""

_PAUSE_S: Final = 0.05
"""After all members were asked without an answer."""
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # two stores of a process have nothing in common
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd takes one in 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)
_NO_ANSWER: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)
_NOT_NOW: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
"""Too many requests, or no space: it was not taken up."""
_NOT_LOGGED_IN: Final = ("invalid auth token", "user name is empty", "revision of auth store is old")
"""Of a token that ran out, of a call without one, and of one that is older than the last change of users."""


@dataclass(frozen=True, slots=True)
class Method:
    """One of etcd's calls."""

    path: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


STATUS: Final = Method(
    "/etcdserverpb.Maintenance/Status", pb.StatusRequest.SerializeToString, pb.StatusResponse.FromString
)
AUTHENTICATE: Final = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest.SerializeToString, pb.AuthenticateResponse.FromString
)


class Endpoint:
    """One member's address and the channel to it."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self.greeted = False
        if access.tls:
            credentials = grpc.ssl_channel_credentials(access.ca, access.key, access.certificate)
            self.channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)

    def is_greeted(self) -> bool:
        """Whether there is a connection now, and to a member that may be asked. Begins one if not."""
        if self.channel.get_state(try_to_connect=True) != grpc.ChannelConnectivity.READY:
            self.greeted = False
        return self.greeted


class Endpoints:
    """The members, one of which is asked until it does not answer."""

    def __init__(self, addresses: Sequence[tuple[str, int]], access: Access, pace: Pace) -> None:
        self._members = [Endpoint(_target(host, port), access) for host, port in addresses]
        self._current = 0
        self._access = access
        self._pace = pace
        self._token = ""
        self._cluster = 0
        self.names = ", ".join(member.address for member in self._members)

    async def call(self, method: Method, request: Any, timeout_ms: int, *, repeatable: bool = True) -> Any:
        """Asks one member after the other until one answers.

        What is not ``repeatable`` is sent once, over a connection that was open. Raises ``EtcdUnavailableError``, its
        outcome "unknown" if that one was sent, and ``EtcdRefusedError``.
        """
        attempts = self.attempts(timeout_ms)
        while True:
            member = await attempts.next()
            try:
                return await self._ask(member, method, request, attempts.left())
            except grpc.aio.AioRpcError as error:
                failed = error
            if await self.logged_in_again(member, said(failed), attempts):
                continue
            if failed.code() not in _NO_ANSWER and failed.code() != _NOT_NOW:
                raise refusal(failed) from failed
            attempts.note(member, said(failed))
            if not repeatable:
                outcome: Outcome = "none" if failed.code() == _NOT_NOW else "unknown"
                raise EtcdUnavailableError(attempts.describe(), outcome) from failed

    def attempts(self, timeout_ms: int) -> Attempts:
        """Members to ask, within a time."""
        return Attempts(self, self._pace, timeout_ms)

    async def greet(self, member: Endpoint, timeout_s: float) -> None:
        """Sees to an open connection to a member of this etcd, of a version that is safe, which knows a leader.

        Raises ``AioRpcError`` and ``EtcdUnavailableError`` if it is none.
        """
        if member.is_greeted():
            return
        status = await self._ask(member, STATUS, pb.StatusRequest(), timeout_s)
        version = _version(status.version)
        if version < OLDEST and not self._access.allow_old_etcd:
            raise EtcdUnavailableError(
                f"etcd {status.version} may lose events of a watch, leases or data, and refuse logins: use "
                f"{'.'.join(map(str, OLDEST))} or newer, or allow it with allow_old_etcd=yes",
                "none",
            )
        if self._cluster not in (0, status.header.cluster_id):
            raise EtcdUnavailableError(
                f"it belongs to another etcd cluster ({status.header.cluster_id:x}, not {self._cluster:x})", "none"
            )
        self._cluster = status.header.cluster_id
        if not status.leader:
            raise EtcdUnavailableError("it knows no leader", "none")
        member.greeted = True

    async def logged_in_again(self, member: Endpoint, failure: str, attempts: Attempts) -> bool:
        """Whether an answer asked for a new token, and there is one now. Raises ``EtcdRefusedError`` if user or password
        are wrong."""
        if not self._access.user or attempts.logins >= 2 or not any(sign in failure for sign in _NOT_LOGGED_IN):
            return False
        attempts.logins += 1
        request = pb.AuthenticateRequest(name=self._access.user, password=self._access.password)
        self._token = ""
        try:
            self._token = (await self._ask(member, AUTHENTICATE, request, attempts.left())).token
        except grpc.aio.AioRpcError as refused:
            if refused.code() in _NO_ANSWER:
                attempts.note(member, said(refused))
                return True
            raise EtcdRefusedError(f"etcd refuses the user {self._access.user}: {said(refused)}") from refused
        return True

    def metadata(self, *, leader: bool = False) -> tuple[tuple[str, str], ...]:
        """What goes with each call. With ``leader`` a member that loses its leader breaks the stream off."""
        return (*((("token", self._token),) if self._token else ()), *((("hasleader", "true"),) if leader else ()))

    def current(self) -> Endpoint:
        """The one to ask."""
        return self._members[self._current]

    def pass_over(self, member: Endpoint) -> bool:
        """Asks another from now on; whether that completes a round."""
        if member is self.current():
            self._current = (self._current + 1) % len(self._members)
        return self._current == 0

    async def close(self) -> None:
        """Ends all connections; what is under way is cancelled."""
        for member in self._members:
            await member.channel.close()

    async def _ask(self, member: Endpoint, method: Method, request: Any, timeout_s: float) -> Any:
        call = member.channel.unary_unary(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        return await call(request, timeout=timeout_s, metadata=self.metadata())


class Attempts:
    """Which member is asked next, and what those before said, within a time."""

    def __init__(self, endpoints: Endpoints, pace: Pace, timeout_ms: int) -> None:
        self._endpoints = endpoints
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._timeout_ms = timeout_ms
        self._deadline = self._loop.time() + timeout_ms / 1000
        self._failures: dict[str, str] = {}
        self._round_over = False
        self.logins = 0

    def left(self) -> float:
        """Seconds for one answer: the pace's, or what is left."""
        return max(0.001, min(self._pace.call / 1000, self._deadline - self._loop.time()))

    async def next(self) -> Endpoint:
        """A member with an open connection. Raises ``EtcdUnavailableError``, of which nothing took effect, when the time is
        over, and ``EtcdRefusedError`` if a member does not let this node in."""
        while self._loop.time() < self._deadline:
            if self._round_over:
                self._round_over = False
                await asyncio.sleep(min(_PAUSE_S, self.left()))
            member = self._endpoints.current()
            try:
                await self._endpoints.greet(member, self.left())
            except grpc.aio.AioRpcError as error:
                if await self._endpoints.logged_in_again(member, said(error), self):
                    continue
                if error.code() not in _NO_ANSWER and error.code() != _NOT_NOW:
                    raise refusal(error) from error
                self.note(member, said(error))
            except EtcdUnavailableError as error:
                self.note(member, str(error))
            else:
                return member
        raise EtcdUnavailableError(self.describe(), "none")

    def note(self, member: Endpoint, failure: str) -> None:
        """This one gave no answer: the next one is asked."""
        self._failures[member.address] = failure
        self._round_over = self._endpoints.pass_over(member)

    def describe(self) -> str:
        """For people: who said what."""
        failures = "; ".join(f"{address}: {failure}" for address, failure in self._failures.items())
        return (
            f"etcd at {self._endpoints.names} gave no answer within {self._timeout_ms} ms ({failures or 'not asked'})"
        )


def refusal(error: grpc.aio.AioRpcError) -> EtcdRefusedError:
    """What an answer that refuses means."""
    reason = said(error)
    if error.code() == grpc.StatusCode.NOT_FOUND and "lease not found" in reason:
        return LeaseOverError(reason)
    if error.code() == grpc.StatusCode.OUT_OF_RANGE and "compacted" in reason:
        return RevisionsForgottenError(reason)
    return EtcdRefusedError(f"etcd refuses: {reason}")


def said(error: grpc.aio.AioRpcError) -> str:
    """An answer's reason, for people."""
    return f"{error.details() or 'no reason given'} ({error.code().name})"


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _version(text: str) -> tuple[int, ...]:
    """``3.6.16`` or ``3.6.0-rc.1``; what cannot be read counts as old."""
    numbers = text.split("-")[0].split(".")
    return tuple(int(number) for number in numbers) if all(number.isdecimal() for number in numbers) else (0,)
