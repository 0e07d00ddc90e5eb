"""This node's registration in the cluster: its number, its live key under a lease, and until when it may answer as it.

The revision that creates the live key is the node's broker epoch. The lease is renewed four times within its time. That
counts from the moment the last successful renewal was sent, on the boot clock, which goes on while the process or the
machine sleeps: this node stops answering before the store lets another take its place.

The store may be unreachable for longer than that. Then the node answers nothing (``on_invalid``), and goes on in the same
incarnation if the lease has outlived it. A lease that is over is another thing (``on_lost``): others may lead by now, so the
node registers anew, with another broker epoch, and leads nothing until it is elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from coordinator.filesystem.storage import WriteInDoubtError
from coordinator.log_output import get_logger
from coordinator.metadata.authority import Compare, Delete, KeyValue, Operation, Put, TransactionError
from coordinator.metadata.keys import CLUSTER_FORMAT, CONTROLLER, KAFKA_BATCHES, NEXT_NODE_ID, live_key, node_key
from coordinator.metadata.store import Lease, MetadataStore, MetadataUnavailableError, Stop
from coordinator.metadata.watchers import Listeners
from coordinator.nodes import cleanliness
from coordinator.nodes.identity import NodeIdentity
from coordinator.replication.partition import Incarnation

log = get_logger()

FIRST_NODE_ID: Final = 1
"""The first that is drawn. 0 is what a single node has, which may become the first of a cluster."""
FORMAT: Final = KAFKA_BATCHES
"""The highest format of metadata, logs and replication that this version reads. A cluster's is in ``cluster.format``: the
first node writes it, the controller raises it once all nodes that live read a higher one, and none writes anything newer."""

_RENEWALS: Final = 4
"""Within a session."""
_DRIFT: Final = 0.99
_MARGIN_MS: Final = 500
"""A session ends here so much earlier than at the store: for the drift of clocks, and for answers on their way."""
_RETRY_S: Final = 0.2
_OVER_S: Final = 1.0
_LONGEST_LOOK_S: Final = 20.0
"""How long a node that may have died is waited for, beyond a session and at most."""
_REVOKE_S: Final = 1.0
ABANDON_S: Final = 0.3
"""How long a node that ends for an error tries to give its lease back, so that another leads at once."""


class RegistrationRefusedError(Exception):
    """This node must not be part of the cluster: the text says why and what to do."""


class _FormerAliveError(Exception):
    """Another directory's node has the live key of this one: it may be gone, and its lease not over yet."""


class Announced(NamedTuple):
    """What the live key tells others: where clients and nodes reach this one, and what it is like."""

    host: str
    port: int
    peer_host: str
    peer_port: int
    rack: str = ""
    defaults: str = ""
    """A hash of its defaults for topics: nodes with different ones are warned about."""
    format: int = FORMAT
    room: int = -1
    """Logs of users' topics that it may open: it is given no more; -1 says nothing."""
    kafka_host: str = ""
    kafka_port: int = 0
    """Where Kafka's clients reach it; not written for 0: nowhere."""


class Registration:
    """See the module text; a ``Membership``. ``register`` begins it, ``close`` ends it."""

    def __init__(
        self,
        store: MetadataStore,
        identity: NodeIdentity,
        node_id: int,
        *,
        session_ms: int,
        boot_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        on_fatal: Callable[[str], None],
        serve_without_quorum: bool = False,
    ) -> None:
        """``identity`` has begun its start. ``on_fatal`` is told why the node can no longer be part of the cluster.

        With ``serve_without_quorum`` the node is valid until it hears that its lease is over.
        """
        self.me = Incarnation(node_id, 0)
        self._store = store
        self._identity = identity
        self._session_ms = session_ms
        self._boot_ms = boot_ms
        self._wall_ms = wall_ms
        self._on_fatal = on_fatal
        self._serve_without_quorum = serve_without_quorum
        self._lost_listeners: Listeners[[]] = Listeners()
        self._invalid_listeners: Listeners[[]] = Listeners()
        self._valid_listeners: Listeners[[]] = Listeners()
        self._registered_listeners: Listeners[[Incarnation]] = Listeners()
        self._announced = Announced("", 0, "", 0)
        self._lease: Lease | None = None
        self._former: tuple[int, float] | None = None
        """The live key of another directory's node by its revision, and since when it is waited for."""
        self._granted_ms = 0
        self._registered = False
        self._draining = False
        self._valid_until_ms = 0
        self._told_invalid = False
        self._expiry: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._noting: asyncio.Task[None] | None = None
        """Tries to note the last registration on disk, which refused that, also when that is over; ends with ``close``."""
        self._stop_watching: Stop | None = None

    # What others ask

    @property
    def lease_id(self) -> int:
        """See ``Membership``."""
        return self._lease.id if self._registered and self._lease is not None else 0

    def valid(self) -> bool:
        """See ``Membership``."""
        return self._registered and (self._serve_without_quorum or self._boot_ms() < self._valid_until_ms)

    def on_lost(self, listener: Callable[[], None]) -> Stop:
        """Calls ``listener`` at once when the lease is over: this node leads nothing any more. Returns what ends this."""
        return self._lost_listeners.add(listener)

    def on_invalid(self, listener: Callable[[], None]) -> Stop:
        """Calls ``listener`` when the time of the lease is over as far as this node knows, and the store does not answer:
        what waits is to be answered, but the node may be valid again in the same incarnation. Returns what ends this."""
        return self._invalid_listeners.add(listener)

    def on_valid(self, listener: Callable[[], None]) -> Stop:
        """Calls ``listener`` when the node is valid again, in the same incarnation, after ``on_invalid``. Returns what ends
        this."""
        return self._valid_listeners.add(listener)

    def on_registered(self, listener: Callable[[Incarnation], None]) -> Stop:
        """Calls ``listener`` with each new incarnation, the first one too. Returns what ends this."""
        return self._registered_listeners.add(listener)

    # Beginning and end

    async def register(self, announced: Announced, *, timeout_s: float = 30.0) -> Incarnation:
        """Makes this node part of the cluster, and keeps it so.

        Raises ``RegistrationRefusedError``, ``MetadataUnavailableError`` when the store does not answer for so long, and
        ``WriteInDoubtError``.
        """
        self._announced = announced
        self._stop_watching = self._store.watch(self._live_key, lambda _: self._look())
        try:
            async with asyncio.timeout(timeout_s):
                await self._register()
        except BaseException as error:
            await self.close()
            if not isinstance(error, TimeoutError):
                raise
            raise MetadataUnavailableError(
                f"node {self.me.node} could not be registered within {timeout_s:g} s: the metadata store does not answer",
                "unknown",
            ) from error
        self._task = asyncio.create_task(self._or_fatal(self._keep), name="cohort-registration")
        return self.me

    async def draining(self) -> None:
        """Says in the live key that this node stops: it is given nothing any more, and the controller moves what it leads.

        Returns once that is written; at once when the node is not registered. Cancel it to bound it.
        """
        self._draining = True
        while self._registered and (known := self._own_key()) is not None and known.version == 1:
            compare = [Compare(known.key, "create", known.create_revision), Compare(known.key, "version", 1)]
            try:
                await self._store.transaction(compare, [Put(known.key, known.value, known.lease)])
            except (MetadataUnavailableError, TransactionError, OSError) as error:
                log.warning("node_not_draining", error=str(error))
                await asyncio.sleep(_RETRY_S)
                await self._catch_up()

    async def close(self, timeout_s: float = _REVOKE_S) -> None:
        """Gives the lease back, so that others take over at once; tries that for ``timeout_s``. No listener is told.

        A note of the registration that is being written is waited for as long, and none is begun any more.
        """
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._stop_watching is not None:
            self._stop_watching()
        self._end()
        lease, self._lease = self._lease, None
        if lease is not None:
            await self._revoke(lease, timeout_s)
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.wait((self._noting,), timeout=timeout_s)

    async def _revoke(self, lease: Lease, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await lease.revoke()
        except (MetadataUnavailableError, TimeoutError, OSError) as error:
            log.warning("lease_not_revoked", node=self.me.node, error=str(error) or f"no answer for {timeout_s:g} s")

    # The lease

    async def _keep(self) -> None:
        while (lease := self._lease) is not None:
            await self._renew_until_lost(lease)
            self._lose("the lease is over")
            await self._revoke(lease, _REVOKE_S)  # it may have outlived the live key, and holds others
            if not self._draining:
                await self._register()

    async def _or_fatal(self, keep: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await keep()
        except RegistrationRefusedError as error:
            self._on_fatal(str(error))
        except WriteInDoubtError as error:
            self._on_fatal(f"it is unknown what the data directory says of this node: {error}")
        except Exception as error:
            log.exception("registration_ended")
            self._on_fatal(f"the node could not be kept registered: {error!r}")

    async def _renew_until_lost(self, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        reachable = True
        while not self._gone.is_set():
            sent_ms, sent = self._boot_ms(), loop.time()
            try:
                async with asyncio.timeout(self._session_ms / 1000):
                    held = await lease.renew()
            except (MetadataUnavailableError, TimeoutError, OSError) as error:
                if reachable:
                    log.warning("lease_not_renewed", node=self.me.node, error=str(error) or "no answer")
                reachable, pause_s = False, _RETRY_S
            else:
                if not held:
                    return
                reachable, pause_s = True, self._session_ms / 1000 / _RENEWALS
                self._held(sent_ms)
            await self._wait(sent + pause_s - loop.time())

    async def _wait(self, seconds: float) -> None:
        """Returns then, or as soon as the live key is gone."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._gone.wait()
        except TimeoutError:
            return

    def _held(self, sent_ms: int) -> None:
        """The lease was there after ``sent_ms``."""
        self._valid_until_ms = max(self._valid_until_ms, self._until(sent_ms))
        if self._told_invalid and self._boot_ms() < self._valid_until_ms:
            self._told_invalid = False
            log.info("node_valid_again", node=self.me.node, broker_epoch=self.me.broker_epoch)
            self._valid_listeners.tell()
        self._await_expiry()

    def _until(self, sent_ms: int) -> int:
        return sent_ms + int(self._session_ms * _DRIFT) - _MARGIN_MS

    def _await_expiry(self) -> None:
        self._stop_timer()
        left_ms = max(1, self._valid_until_ms - self._boot_ms())
        self._expiry = asyncio.get_running_loop().call_later(left_ms / 1000, self._expired)

    def _expired(self) -> None:
        self._expiry = None
        if not self._registered or self._serve_without_quorum or self._told_invalid:
            return
        if self._boot_ms() < self._valid_until_ms:
            self._await_expiry()
            return
        self._told_invalid = True
        log.warning("node_not_valid", node=self.me.node, broker_epoch=self.me.broker_epoch)
        self._invalid_listeners.tell()

    def _look(self) -> None:
        """The live key changed."""
        known = self._store.get(self._live_key)
        if self._registered and (known is None or known.create_revision != self.me.broker_epoch):
            self._gone.set()
            self._lose("the live key is gone")

    def _lose(self, reason: str) -> None:
        if not self._registered:
            return
        log.warning("registration_lost", node=self.me.node, broker_epoch=self.me.broker_epoch, reason=reason)
        self._end()
        self._lease = None
        self._lost_listeners.tell()

    def _end(self) -> None:
        self._registered = False
        self._valid_until_ms = 0
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    # Registering

    async def _register(self) -> None:
        """Returns once this node is registered. Raises ``RegistrationRefusedError`` and ``WriteInDoubtError``."""
        said = ""
        while True:
            try:
                if await self._attempt():
                    return
            except (MetadataUnavailableError, TransactionError, OSError, _FormerAliveError) as error:
                if isinstance(error, WriteInDoubtError):
                    raise
                if isinstance(error, TransactionError):
                    self._lease = None  # it is over, and what was sent with it can take effect no more
                if str(error) != said:
                    said = str(error)
                    log.warning("node_not_registered", node=self.me.node, error=said)
            await asyncio.sleep(_RETRY_S)

    async def _attempt(self) -> bool:
        """Whether this node is registered now. What an earlier attempt asked for may have come true meanwhile, or still may:
        it was for the same lease, and for a live key that was not there."""
        await self._store.catch_up()
        if self._store.get(CLUSTER_FORMAT) is None:
            await self._store.transaction(
                [Compare(CLUSTER_FORMAT, "create", 0)], [Put(CLUSTER_FORMAT, {"format": FORMAT})]
            )
        clean_since = self._judged()
        if clean_since == cleanliness.THIS_START:  # once it is registered, nothing tells of another directory any more
            await self._identity.not_clean()
        known = self._store.get(self._live_key)
        if known is not None and not self._is_own(known):
            await self._remove_former(known)
            return False
        lease = await self._held_lease()
        if known is None:
            node, agreed = self._store.get(self._node_key), self._store.get(CLUSTER_FORMAT)
            compare = [
                Compare(CLUSTER_FORMAT, "mod", 0 if agreed is None else agreed.mod_revision),
                Compare(self._live_key, "create", 0),
                Compare(self._node_key, "mod", 0 if node is None else node.mod_revision),
            ]
            puts: list[Operation] = [
                Put(self._live_key, self._live_value(clean_since), lease.id),
                Put(self._node_key, self._node_value(node)),
            ]
            await self._store.transaction(compare, puts)
            known = self._store.get(self._live_key)
            if known is None or not self._is_own(known):
                return False
        return await self._registered_as(known)

    async def _held_lease(self) -> Lease:
        """The lease of this registration: granted, or still there from an earlier attempt."""
        sent_ms = self._boot_ms()
        if self._lease is not None and await self._lease.renew():
            self._granted_ms = sent_ms
            return self._lease
        self._lease = None
        sent_ms = self._boot_ms()
        lease = await self._store.grant(self._session_ms)
        self._lease, self._granted_ms = lease, sent_ms
        return lease

    async def _registered_as(self, known: KeyValue) -> bool:
        clean_since = int(known.value["clean_since"]) or known.create_revision
        is_noted = await self._identity.registered(known.create_revision, clean_since)
        current = self._store.get(known.key)
        if current is None or current.create_revision != known.create_revision:
            return False
        self.me = Incarnation(self.me.node, known.create_revision)
        self._registered, self._told_invalid = True, False
        self._gone.clear()
        self._held(self._granted_ms)
        if not is_noted:
            self._keep_noting()
        log.info("node_registered", node=self.me.node, broker_epoch=self.me.broker_epoch, clean_since=clean_since)
        self._registered_listeners.tell(self.me)
        return True

    def _keep_noting(self) -> None:
        """Until the registration is noted, a power cut makes this node one that may have lost everything."""
        if self._noting is None or self._noting.done():
            noting = self._or_fatal(self._identity.keep_noting)
            self._noting = asyncio.create_task(noting, name="cohort-registration-note")

    async def _remove_former(self, known: KeyValue) -> None:
        """Ends the incarnation before this one, whose process is dead: this one has its data directory."""
        compare = [Compare(known.key, "create", known.create_revision)]
        removed: list[Operation] = [Delete(known.key)]
        controller = self._store.get(CONTROLLER)
        former = Incarnation(self.me.node, known.create_revision)
        if controller is not None and (controller.value["node"], controller.value["broker_epoch"]) == former:
            compare.append(Compare(CONTROLLER, "create", controller.create_revision))
            removed.append(Delete(CONTROLLER))
        await self._store.transaction(compare, removed)

    def _judged(self) -> int:
        """Since when this node is clean. Raises ``RegistrationRefusedError``."""
        identity, node = self._identity, self.me.node
        check_format(self._store)
        if identity.broker_epoch > self._store.revision:
            raise RegistrationRefusedError(
                f"the metadata store is at revision {self._store.revision}, and node {node} was registered at revision "
                f"{identity.broker_epoch}: the store was restored from an old backup. Restore a newer one; or, if what "
                "happened since may be lost, start with an empty data directory"
            )
        live = self._store.get(self._live_key)
        if live is not None and not self._is_own(live):
            self._check_former(live)
        known = self._store.get(self._node_key)
        start = "" if known is None else str(known.value["start"])
        if cleanliness.is_another_directory(identity.starts, start):
            log.warning("node_not_clean", reason="the node was registered from another data directory meanwhile")
            return cleanliness.THIS_START
        return identity.clean_since

    def _check_former(self, live: KeyValue) -> None:
        value, node = live.value, self.me.node
        where = f"{value['host']}:{value['port']}"
        if value["directory"] != self._identity.directory:
            refusal = (
                f"node {node} is alive at {where} with another data directory ({value['directory']}, this one is "
                f"{self._identity.directory}): two daemons have the node id {node}. Give one of them another node_id"
            )
        elif value["start"] not in self._identity.starts:
            refusal = (
                f"node {node} is alive at {where} with a copy of this data directory ({self._identity.directory}): stop "
                "one of the two, and give it an empty directory"
            )
        else:
            return
        now = asyncio.get_running_loop().time()
        if self._former is None or self._former[0] != live.create_revision:
            self._former = live.create_revision, now
        if now - self._former[1] < min(self._session_ms / 1000 + _OVER_S, _LONGEST_LOOK_S):
            raise _FormerAliveError(f"{refusal}. It may have died a moment ago: its lease is waited for")
        raise RegistrationRefusedError(refusal)

    def _is_own(self, known: KeyValue) -> bool:
        """Whether a live key was made by this registration or an attempt of it."""
        return self._lease is not None and known.lease == self._lease.id

    def _own_key(self) -> KeyValue | None:
        known = self._store.get(self._live_key)
        return known if known is not None and known.create_revision == self.me.broker_epoch else None

    async def _catch_up(self) -> None:
        try:
            await self._store.catch_up()
        except MetadataUnavailableError as error:
            log.warning("metadata_not_caught_up", error=str(error))

    @property
    def _live_key(self) -> str:
        return live_key(self.me.node)

    @property
    def _node_key(self) -> str:
        return node_key(self.me.node)

    def _live_value(self, clean_since: int) -> dict[str, Any]:
        announced = self._announced._asdict()
        if not self._announced.kafka_port:
            del announced["kafka_host"], announced["kafka_port"]
        return {
            "directory": self._identity.directory,
            "start": self._identity.starts[-1],
            **announced,
            "clean_since": clean_since,
        }

    def _node_value(self, known: KeyValue | None) -> dict[str, Any]:
        return {
            "directory": self._identity.directory,
            "start": self._identity.starts[-1],
            "rack": self._announced.rack,
            "first_seen_ms": self._wall_ms() if known is None else known.value["first_seen_ms"],
        }


def check_format(store: MetadataStore) -> None:
    """Raises ``RegistrationRefusedError`` when the cluster's metadata have a format that this version does not read."""
    known = store.get(CLUSTER_FORMAT)
    if known is not None and known.value["format"] > FORMAT:
        raise RegistrationRefusedError(
            f"the cluster's metadata have format {known.value['format']}, and this version of Cohort reads formats up to "
            f"{FORMAT}: start the version that the other nodes run"
        )


async def draw_node_id(store: MetadataStore) -> int:
    """A number that no node of the cluster has had. Raises ``MetadataUnavailableError``.

    One that is drawn in vain, as the answer was lost, is not drawn again.
    """
    while True:
        await store.catch_up()
        known = store.get(NEXT_NODE_ID)
        node = FIRST_NODE_ID if known is None else int(known.value["next"])
        while store.get(node_key(node)) is not None:
            node += 1
        compare = [Compare(NEXT_NODE_ID, "mod", 0 if known is None else known.mod_revision)]
        if await store.transaction(compare, [Put(NEXT_NODE_ID, {"next": node + 1})]) is not None:
            return node
