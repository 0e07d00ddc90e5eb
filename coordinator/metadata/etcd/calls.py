"""``rpc.Etcd`` over ``grpc.aio``: requests made of ``etcd_pb2``'s messages, answers taken apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from coordinator.metadata.authority import Compare, Delete, KeyValue, Operation, Put
from coordinator.metadata.etcd import etcd_pb2 as pb
from coordinator.metadata.etcd.endpoints import Attempts, Endpoint, Endpoints, Method, said
from coordinator.metadata.etcd.rpc import (
    Access,
    Answer,
    EtcdRefusedError,
    Happening,
    News,
    Pace,
    Page,
    RevisionsForgottenError,
    StreamBrokenError,
    end_of_prefix,
)

Result = TypeVar("Result")

RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeRequest.SerializeToString, pb.RangeResponse.FromString)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnRequest.SerializeToString, pb.TxnResponse.FromString)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest.SerializeToString, pb.WatchResponse.FromString)
GRANT: Final = Method(
    "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest.SerializeToString, pb.LeaseGrantResponse.FromString
)
REVOKE: Final = Method(
    "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest.SerializeToString, pb.LeaseRevokeResponse.FromString
)
KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    pb.LeaseKeepAliveRequest.SerializeToString,
    pb.LeaseKeepAliveResponse.FromString,
)
_DELETE: Final = pb.Event.DELETE


class GrpcEtcd:
    """See ``rpc.Etcd``. Make one on a running loop, and one loop a process: ``grpc.aio`` has one poller for all."""

    def __init__(self, addresses: Sequence[tuple[str, int]], access: Access, pace: Pace) -> None:
        self._members = Endpoints(addresses, access, pace)
        self._pace = pace
        self.endpoints = self._members.names
        self._renewals: tuple[Endpoint, Any] | None = None
        self._renewing = asyncio.Lock()

    async def range(self, first: str, end: str, *, limit: int, revision: int = 0, timeout_ms: int) -> Page:
        """See ``rpc.Etcd``."""
        request = pb.RangeRequest(key=first.encode(), range_end=end.encode(), limit=limit, revision=revision)
        answer = await self._members.call(RANGE, request, timeout_ms)
        return Page(answer.header.revision, [_key_value(kv) for kv in answer.kvs], answer.more)

    async def txn(self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int) -> Answer:
        """See ``rpc.Etcd``."""
        request = pb.TxnRequest(compare=map(_condition, compare), success=map(_operation, operations))
        answer = await self._members.call(TXN, request, timeout_ms, repeatable=False)
        return Answer(answer.header.revision, answer.succeeded)

    async def grant(self, ttl_s: int, *, timeout_ms: int) -> tuple[int, int]:
        """See ``rpc.Etcd``. A lease that was granted in an answer that got lost ends by itself."""
        answer = await self._members.call(GRANT, pb.LeaseGrantRequest(TTL=ttl_s), timeout_ms)
        return answer.ID, answer.TTL

    async def revoke(self, lease: int, *, timeout_ms: int) -> int:
        """See ``rpc.Etcd``."""
        answer = await self._members.call(REVOKE, pb.LeaseRevokeRequest(ID=lease), timeout_ms)
        return int(answer.header.revision)

    async def keep_alive(self, lease: int, *, timeout_ms: int) -> bool:
        """See ``rpc.Etcd``. One stream carries them all, one at a time: half the time of a call each."""
        async with self._renewing:
            attempts = self._members.attempts(timeout_ms)
            while True:
                member, stream = await self._renewal_stream(attempts)
                try:
                    ttl = await _within(attempts.left(), self._renew(stream, lease))
                except StreamBrokenError as error:
                    self._drop_renewals()
                    if not await self._members.logged_in_again(member, str(error), attempts):
                        attempts.note(member, str(error))
                except asyncio.CancelledError:
                    self._drop_renewals()  # the answer would be taken for the next one's
                    raise
                else:
                    return ttl > 0

    async def _renewal_stream(self, attempts: Attempts) -> tuple[Endpoint, Any]:
        if self._renewals is None:
            member = await attempts.next()
            self._renewals = member, self._stream(member, KEEP_ALIVE)
        return self._renewals

    async def _renew(self, stream: Any, lease: int) -> int:
        await stream.write(pb.LeaseKeepAliveRequest(ID=lease))
        answer = await stream.read()
        if answer is grpc.aio.EOF:
            raise StreamBrokenError("the member ended the stream of renewals")
        return int(answer.TTL)

    def _drop_renewals(self) -> None:
        if self._renewals is not None:
            self._renewals[1].cancel()
            self._renewals = None

    async def watch(self, first: str, end: str, *, revision: int, timeout_ms: int) -> GrpcWatch:
        """See ``rpc.Etcd``."""
        attempts = self._members.attempts(timeout_ms)
        while True:
            member = await attempts.next()
            watch = GrpcWatch(self._stream(member, WATCH), self._pace)
            try:
                await _within(attempts.left(), watch.begin(first, end, revision))
            except StreamBrokenError as error:
                await watch.close()
                if not await self._members.logged_in_again(member, str(error), attempts):
                    attempts.note(member, str(error))
            except BaseException:
                await watch.close()
                raise
            else:
                return watch

    def _stream(self, member: Endpoint, method: Method) -> Any:
        multi = member.channel.stream_stream(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        return multi(metadata=self._members.metadata(leader=True))

    async def close(self) -> None:
        """See ``rpc.Etcd``."""
        self._drop_renewals()
        await self._members.close()


class GrpcWatch:
    """See ``rpc.Watch``. Has its own stream, and a task that asks for progress."""

    def __init__(self, stream: Any, pace: Pace) -> None:
        self._stream = stream
        self._pace = pace
        self._wanted = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    async def begin(self, first: str, end: str, revision: int) -> None:
        """Has the member begin it. Raises ``StreamBrokenError`` and ``EtcdRefusedError``."""
        create = pb.WatchCreateRequest(
            key=first.encode(), range_end=end.encode(), start_revision=revision, fragment=True
        )
        await self._stream.write(pb.WatchRequest(create_request=create))
        answer = await self._stream.read()
        if answer is grpc.aio.EOF or answer.canceled:
            reason = "the member ended it" if answer is grpc.aio.EOF else answer.cancel_reason
            if "permission denied" in reason:
                raise EtcdRefusedError(f"etcd refuses the watch: {reason}")
            raise StreamBrokenError(reason)
        self._asking = asyncio.create_task(self._ask())

    async def next(self) -> News:
        """See ``rpc.Watch``."""
        answer = await _within(self._pace.silence / 1000, self._stream.read())
        if answer is grpc.aio.EOF:
            raise StreamBrokenError("the member ended the watch")
        if answer.compact_revision:
            raise RevisionsForgottenError(f"what came before revision {answer.compact_revision} is compacted")
        if answer.canceled:
            raise StreamBrokenError(answer.cancel_reason or "the member cancelled the watch")
        happenings = [
            Happening(
                event.kv.mod_revision, event.kv.key.decode(), None if event.type == _DELETE else _key_value(event.kv)
            )
            for event in answer.events
        ]
        return News(happenings, 0 if happenings else answer.header.revision, answer.fragment)

    def ask_progress(self) -> None:
        """See ``rpc.Watch``."""
        self._wanted.set()

    async def close(self) -> None:
        """See ``rpc.Watch``."""
        self._stream.cancel()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pace.progress / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # its time has come without a wish
            self._wanted.clear()
            try:
                await self._stream.write(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
                return  # the stream is over; whoever reads it is told why


async def _within(seconds: float, awaited: Awaitable[Result]) -> Result:
    """What a stream gives in time. Raises ``StreamBrokenError``, caused by what happened."""
    try:
        async with asyncio.timeout(seconds):
            return await awaited
    except TimeoutError as error:
        raise StreamBrokenError(f"silent for {seconds:.1f} s") from error
    except grpc.aio.AioRpcError as error:
        raise StreamBrokenError(said(error)) from error
    except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
        raise StreamBrokenError("the stream is over") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StreamBrokenError("the stream was cancelled") from error  # grpc's way to say that it ended meanwhile


def _key_value(kv: Any) -> KeyValue:
    return KeyValue(kv.key.decode(), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def _condition(compare: Compare) -> pb.Compare:
    key = compare.key.encode()
    if compare.what == "mod":
        return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=compare.revision)
    if compare.what == "create":
        return pb.Compare(target=pb.Compare.CREATE, key=key, create_revision=compare.revision)
    return pb.Compare(target=pb.Compare.VERSION, key=key, version=compare.revision)


def _operation(operation: Operation) -> pb.RequestOp:
    if isinstance(operation, Put):
        put = pb.PutRequest(key=operation.key.encode(), value=operation.value, lease=operation.lease)
        return pb.RequestOp(request_put=put)
    if isinstance(operation, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=operation.key.encode()))
    first = operation.prefix.encode()
    delete = pb.DeleteRangeRequest(key=first, range_end=end_of_prefix(operation.prefix).encode())
    return pb.RequestOp(request_delete_range=delete)
