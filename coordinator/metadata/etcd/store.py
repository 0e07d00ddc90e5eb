"""The metadata store on etcd: ``rpc``'s calls, and a mirror that ``watching`` keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.metadata.authority import (
    Compare,
    Delete,
    DeletePrefix,
    Operation,
    Put,
    TransactionError,
    check,
)
from coordinator.metadata.etcd.rpc import Etcd, EtcdRefusedError, EtcdUnavailableError, LeaseOverError, Outcome
from coordinator.metadata.etcd.watching import Following, decoded
from coordinator.metadata.mirror import Mirrored
from coordinator.metadata.store import TIMEOUT_MS, Lease, MetadataUnavailableError


class EtcdStore(Mirrored):
    """Implements ``MetadataStore``; every method raises ``MetadataUnavailableError``. Make one with ``EtcdStore.open``.

    The keys of the cluster ``name`` lie below ``/cohort/name/``, its identity in ``/cohort/name``.
    The revision rises with what others write into the same etcd, too.
    """

    def __init__(self, etcd: Etcd, name: str, on_fatal: Callable[[str], None]) -> None:
        super().__init__()
        self._etcd = etcd
        self._key = f"/cohort/{name}"
        self._cluster_id = ""
        self._following = Following(etcd, f"{self._key}/", self._mirror, self._watchers.tell, on_fatal)

    @classmethod
    async def open(
        cls,
        etcd: Etcd,
        name: str,
        new_cluster_id: Callable[[], str],
        on_fatal: Callable[[str], None],
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> EtcdStore:
        """The store of a cluster, which is made if etcd has none of this name; lists all keys.

        ``on_fatal`` is called with the reason when the store cannot follow etcd any more; it must end the node. Raises
        ``MetadataUnavailableError``, which names the members and what they said, and ``UnreadableKeyError``.
        """
        store = cls(etcd, name, on_fatal)
        try:
            async with asyncio.timeout(timeout_ms / 1000 + 1):  # each call has that time, and says more when it is over
                store._cluster_id = await store._identity(new_cluster_id, timeout_ms)
                await store._following.start(timeout_ms)
        except (EtcdUnavailableError, EtcdRefusedError) as error:
            raise _unavailable(error, "none") from error
        except TimeoutError as error:
            raise MetadataUnavailableError(
                f"etcd at {etcd.endpoints} was not read within {timeout_ms} ms", "none"
            ) from error
        return store

    async def _identity(self, new_cluster_id: Callable[[], str], timeout_ms: int) -> str:
        drawn = False
        while True:
            page = await self._etcd.range(self._key, self._key + "\0", limit=1, timeout_ms=timeout_ms)
            if page.keys:
                return str(decoded(page.keys[0], self._etcd.endpoints)["id"])
            assert not drawn, "a key that was made is there"
            put = Put(self._key, _encode({"v": 1, "id": new_cluster_id()}))
            try:
                drawn = (
                    await self._etcd.txn([Compare(self._key, "create", 0)], [put], timeout_ms=timeout_ms)
                ).succeeded
            except EtcdUnavailableError as error:
                if error.outcome == "none":
                    raise  # and if it is unknown, looking settles it: whatever lands later finds the key made

    @property
    def cluster_id(self) -> str:
        """The identity of the cluster, given by the first node that opened it."""
        return self._cluster_id

    async def transaction(
        self, compare: Sequence[Compare], operations: Sequence[Operation], *, timeout_ms: int = TIMEOUT_MS
    ) -> int | None:
        """Carries out all operations at one revision and returns it, once the mirror shows it; None if a condition fails,
        once the mirror shows why.

        Sent once. After an error whose ``outcome`` is "unknown" it may have taken effect, or still may: catch up, look at
        the keys that it compared, decide. Raises ``TransactionError`` as ``Authority.transaction``.
        """
        check(compare, operations)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        try:
            answer = await self._etcd.txn(
                [condition._replace(key=self._whole(condition.key)) for condition in compare],
                [self._sent(operation) for operation in operations],
                timeout_ms=timeout_ms,
            )
        except LeaseOverError as error:
            leases = sorted({operation.lease for operation in operations if isinstance(operation, Put)} - {0})
            raise TransactionError(f"keys are to go with lease {', '.join(map(str, leases))}, which is over") from error
        except (EtcdUnavailableError, EtcdRefusedError) as error:
            raise _unavailable(error, "none") from error
        left_ms = max(1, int((deadline - loop.time()) * 1000))
        await self._reach(answer.revision, left_ms, "unknown" if answer.succeeded else "none")
        return answer.revision if answer.succeeded else None

    async def catch_up(self, *, timeout_ms: int = TIMEOUT_MS) -> int:
        """Returns once the mirror has everything that was written before; its revision."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        try:
            revision = await self._following.now(timeout_ms)
        except (EtcdUnavailableError, EtcdRefusedError) as error:
            raise _unavailable(error, "none") from error
        except Exception as error:  # what ended the following
            raise _ended(error, "none") from error
        await self._reach(revision, max(1, int((deadline - loop.time()) * 1000)), "none")
        return self.revision

    async def grant(self, ttl_ms: int, *, timeout_ms: int = TIMEOUT_MS) -> Lease:
        """See ``MetadataStore.grant``. etcd gives whole seconds, two at least."""
        try:
            lease, _ = await self._etcd.grant(-(-ttl_ms // 1000), timeout_ms=timeout_ms)
        except (EtcdUnavailableError, EtcdRefusedError) as error:
            raise _unavailable(error, "none") from error
        return Lease(self, lease)

    async def renew(self, lease: int, *, timeout_ms: int = TIMEOUT_MS) -> bool:
        """See ``Lease.renew``."""
        try:
            return await self._etcd.keep_alive(lease, timeout_ms=timeout_ms)
        except (EtcdUnavailableError, EtcdRefusedError) as error:
            raise _unavailable(error, "unknown") from error

    async def revoke(self, lease: int, *, timeout_ms: int = TIMEOUT_MS) -> None:
        """See ``Lease.revoke``. The mirror shows it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        try:
            revision = await self._etcd.revoke(lease, timeout_ms=timeout_ms)
        except LeaseOverError:
            return
        except (EtcdUnavailableError, EtcdRefusedError) as error:
            raise _unavailable(error, "unknown") from error
        await self._reach(revision, max(1, int((deadline - loop.time()) * 1000)), "unknown")

    async def close(self) -> None:
        """Ends the watch and all connections. Leases go on until their time is over."""
        await self._following.stop()
        await self._etcd.close()

    async def _reach(self, revision: int, timeout_ms: int, outcome: Outcome) -> None:
        try:
            await self._following.reach(revision, timeout_ms)
        except TimeoutError as error:
            raise MetadataUnavailableError(
                f"etcd at {self._etcd.endpoints} is at revision {revision}, and within {timeout_ms} ms this node has seen "
                f"no more than {self.revision}",
                outcome,
            ) from error
        except Exception as error:  # what ended the following, told to everyone who asks
            raise _ended(error, outcome) from error

    def _whole(self, key: str) -> str:
        return f"{self._key}/{key}"

    def _sent(self, operation: Operation) -> Operation:
        if isinstance(operation, Put):
            return Put(self._whole(operation.key), _encode(operation.value), operation.lease)
        if isinstance(operation, Delete):
            return Delete(self._whole(operation.key))
        return DeletePrefix(self._whole(operation.prefix))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _unavailable(error: Exception, outcome: Outcome) -> MetadataUnavailableError:
    return MetadataUnavailableError(str(error), error.outcome if isinstance(error, EtcdUnavailableError) else outcome)


def _ended(error: Exception, outcome: Outcome) -> MetadataUnavailableError:
    return MetadataUnavailableError(f"the metadata is not followed any more: {error}", outcome)
