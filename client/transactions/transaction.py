"""A transaction as its program holds it: records and offsets that take effect together or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, runtime_checkable

from client.errors import CohortError, TransactionAbortedError, copy_of
from client.transactions.ending import Outcome
from client.transactions.offsets import checked_group
from client.types.records import GroupMetadata, OffsetAndMetadata, RecordMetadata
from protocol.messages.transactions import NO_VERSION
from protocol.subscription import TopicPartition

if TYPE_CHECKING:
    from client.transactions.lifecycle import Transactions

ABORT_WAIT_S: Final = 5.0
"""How long an abort waits for the coordinator, whose answer changes nothing: at the latest the timeout aborts it."""

RecordFuture = asyncio.Future[RecordMetadata]


@runtime_checkable
class ConsumedOffsets(Protocol):
    """A consumer: what it has handed out, and who it is in its group."""

    def group_metadata(self) -> GroupMetadata:
        """Who it is: offsets of a member that lost its partitions are refused."""
        ...

    def consumed_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The offset of the next record of each of its partitions."""
        ...


class Sends(Protocol):
    """What a transaction needs of its producer."""

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> RecordFuture:
        """See ``Producer.send``."""
        ...

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | Iterable[int] | None = None,
        headers: Iterable[Sequence[tuple[str, bytes | None]] | None] | None = None,
    ) -> list[RecordMetadata]:
        """See ``Producer.send_many``."""
        ...


class Transaction:
    """One transaction of a producer; made by ``Producer.transaction`` and ``Producer.begin_transaction``.

    ``async with`` begins it. Leaving the block commits, an exception that leaves it aborts. ``version`` is its number, -1
    when it has none.
    """

    def __init__(self, transactions: Transactions, producer: Sends, version: int = NO_VERSION) -> None:
        self.version = version
        self.outcome: Outcome | None = None
        """"committed" or "aborted"; None while it is open, or not known yet."""
        self.failure: CohortError | None = None
        """Why it can only be aborted; None while it may be committed."""
        self.on_failure: Callable[[CohortError], None] | None = None
        """Called once, with ``failure``, in the turn of the loop in which that is learned."""
        self.begun = False
        self.ending = False
        """Whether it takes nothing more: it is being committed, or has ended."""
        self.has_offsets = False
        """Whether offsets were sent, so that the coordinator may know of it."""
        self.group_id: str | None = None
        """The group of the latest of them."""
        self.offset_calls: set[asyncio.Future[None]] = set()
        """Calls that send offsets and have no answer yet."""
        self._transactions = transactions
        self._producer = producer

    async def __aenter__(self) -> Self:
        await self._transactions.begin(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.outcome is not None or not self._transactions.is_open(self):
            return  # the program has ended it itself
        if kind is None:
            await self._transactions.commit(self)
        else:
            # A cancelled program is not held up: the answer is waited for by what the producer does next.
            await self._transactions.abort(self, ABORT_WAIT_S if issubclass(kind, Exception) else 0.0, error)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> RecordFuture:
        """As ``Producer.send``. The future is done when the record is stored; readers see it after the commit.

        A commit need not wait for the acknowledgements of its records. When these are lost on their way the futures have
        the offset -1 after it, and ``TransactionUncertainError`` when the commit itself has no answer.

        Raises ``TransactionAbortedError`` when the transaction can only be aborted any more.
        """
        if self._transactions.current is not self:  # whatever else is wrong, the producer finds
            self._transactions.check_open(self)
        return await self._producer.send(
            topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | Iterable[int] | None = None,
        headers: Iterable[Sequence[tuple[str, bytes | None]] | None] | None = None,
    ) -> list[RecordMetadata]:
        """As ``Producer.send_many``; see ``send``."""
        self._transactions.check_open(self)
        return await self._producer.send_many(
            topic, values, keys, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | ConsumedOffsets,
        group_metadata: GroupMetadata | str | None = None,
    ) -> None:
        """Commits offsets of a group with the transaction; returns when its coordinator has them.

        ``offsets`` are those of the next records to read, and ``group_metadata`` is that of the consumer, which keeps a
        member that lost its partitions from committing; or just the name of a group without members. Instead of both it may
        be the consumer: then every record is done that it has handed out.

        Raises ``CommitFailedError`` when the group refuses them, ``TransactionAbortedError`` when no answer came within
        ``delivery_timeout_ms``: the transaction can only be aborted then. A call that is cancelled has the same effect.
        """
        if isinstance(offsets, Mapping):
            if group_metadata is None:
                raise TypeError("send_offsets({...}, group_metadata) needs the group: pass consumer.group_metadata()")
            await self._transactions.send_offsets(self, offsets, checked_group(group_metadata))
            return
        if not isinstance(offsets, ConsumedOffsets):
            raise TypeError(f"send_offsets takes a dict of offsets, or the consumer itself, not {offsets!r}")
        if group_metadata is not None:
            raise TypeError("send_offsets(consumer) takes the group from the consumer: leave group_metadata out")
        group = checked_group(offsets.group_metadata())
        await self._transactions.send_offsets(self, offsets.consumed_offsets(), group)

    def aborted_error(self) -> CohortError:
        """What is raised where this transaction was to go on, and is or will be aborted."""
        failure = self.failure
        if self._transactions.fatal is not None:
            return copy_of(self._transactions.fatal)
        why = f": {failure}" if failure is not None else ""
        error = TransactionAbortedError(
            f"the transaction of {self._transactions.transactional_id!r} is aborted, and nothing of it takes effect{why}"
        )
        error.__cause__ = failure
        return error
