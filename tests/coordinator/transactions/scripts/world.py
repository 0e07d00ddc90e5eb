"""The world of a script: the transaction core, producers with short names, and what their requests say by default.

README.md describes the words. Producer ids are shown as P0, P1, ... in the order they were given out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from coordinator.transactions.config import TransactionConfig
from coordinator.transactions.expiry import EXPIRY_TIMER
from coordinator.transactions.orders import FindOpen, MarkerOutcome, WriteMarkers
from coordinator.transactions.records import (
    NOT_STARTED,
    Ended,
    Identity,
    IdentityRecord,
    IdentityTombstone,
    MemberRecord,
    MemberTombstone,
    TransactionRecord,
)
from protocol.errors import ErrorCode
from protocol.messages import Request, Response
from protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.transactions import (
    NO_VERSION,
    AbortTransactionRequest,
    AbortTransactionResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribedTransaction,
    EndTxnRequest,
    EndTxnResponse,
    JoinTransactionRequest,
    JoinTransactionResponse,
    TransactionTopic,
)
from tests.coordinator.transactions.steps import Coordinator
from tests.scripts.script import Happened, Script, ScriptError, Step

FIRST_ID: Final = 1000
NOT_GIVEN: Final = Identity(-1, -1)
ALONE: Final = ("wait", "restart", "unload", "expire", "describe", "list", "markers", "found", "ids")
_TOPIC: Final = re.compile(r"(\w+)/(\d+(?:,\d+)*)")


@dataclass(slots=True)
class Producer:
    """What a producer has heard."""

    identity: Identity = NOT_GIVEN
    transaction: Identity = NOT_GIVEN
    """What names the whole transaction; another than its identity for a member."""
    keeps_epoch: bool = False
    """Whether it hears of no other identity when a transaction ends."""


@dataclass(slots=True)
class World:
    """Carries out the steps of one script, one after the other."""

    script: Script
    there: Coordinator = field(init=False)
    producers: dict[str, Producer] = field(default_factory=dict)
    sent: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    """Requests without an answer: who, the verb, the transactional id."""
    seen_records: int = 0
    seen_lookups: list[FindOpen] = field(default_factory=list)
    seen_answers: set[int] = field(default_factory=set)
    shown_orders: list[WriteMarkers] = field(default_factory=list)
    ordered: list[WriteMarkers] = field(default_factory=list)
    """Orders that are given, of which markers may still be told."""
    states: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.there = Coordinator(TransactionConfig(**self.script.settings), FIRST_ID)

    def run(self, step: Step) -> list[Happened]:
        """Does what a step says; gives the answers, records, orders and states that changed, in this order."""
        words = list(step.words)
        who = "" if words[0] in ALONE else words.pop(0)
        verb = words.pop(0)
        options = {name: value for name, found, value in (word.partition("=") for word in words) if found}
        keeps = "keeps" in words
        names = [word for word in words if "=" not in word and word != "keeps"]
        self.there.advance(step.time_ms - self.there.now_ms)
        if verb != "wait" and (happened := self._news()):
            raise ScriptError(f"line {step.line}: a timer came before this step; write a wait: {happened}")
        shown = self._alone(verb, names, options) if not who else self._asks(who, verb, names, options, keeps)
        if verb != "unload":
            assert self.there.replayed().durable_state() == self.there.core.durable_state()
        return shown + self._news()

    def finish(self) -> None:
        """Ends the script: what is parked is answered when the shard is unloaded, and no timer stays."""
        self.there.carry_out(self.there.core.unload(self.there.step()))
        self._news()
        if self.sent:
            raise ScriptError(f"never answered: {list(self.sent.values())}")
        if self.there.timers:
            raise ScriptError(f"timers stay: {self.there.timers}")

    def _alone(self, verb: str, names: list[str], options: dict[str, str]) -> list[Happened]:
        there = self.there
        if verb == "restart":
            self.sent.clear()
            self.ordered.clear()
            there.restart()
        elif verb == "unload":
            there.carry_out(there.core.unload(there.step()))
        elif verb == "expire":
            there.carry_out(there.core.start_expiry(there.step(), 0))
            there.carry_out(there.core.on_timer(EXPIRY_TIMER, there.step()))
            step = there.step()
            there.core.expiry.stop(step)
            there.carry_out(step.effects)
        elif verb == "ids":
            there.has_producer_ids = names == ["back"]
        elif verb == "found":
            there.found(is_open=names == ["open"])
        elif verb == "markers":
            self._markers(names, options)
        elif verb == "describe":
            return [_described(there.core.describe(name)) for name in names or ["t"]]
        elif verb == "list":
            older_ms = int(options.get("older", -1))
            listed = there.core.list(
                names, [int(options["pid"]) + FIRST_ID] if "pid" in options else [], older_ms, there.wall_ms
            )
            words = [f"{one.transactional_id}={one.transaction_state}" for one in listed]
            return [Happened("->", f"list: {' '.join(words)}".strip())]
        return []

    def _markers(self, names: list[str], options: dict[str, str]) -> None:
        outcome = MarkerOutcome(next(name for name in names if "/" not in name))
        wanted = {place for name in names if "/" in name for place in _places(name)}
        for order in self.ordered:
            for partition in order.partitions:
                if not wanted or (partition.topic, partition.partition) in wanted:
                    reason = options.get("reason", "")
                    self.there.marked(order.transaction, partition.topic_id, partition.partition, outcome, reason)

    def _asks(self, who: str, verb: str, names: list[str], options: dict[str, str], keeps: bool) -> list[Happened]:
        producer = self.producers.setdefault(who, Producer())
        if verb == "disconnect":
            for token, (sender, _, _) in list(self.sent.items()):
                if sender == who:
                    del self.sent[token]
                    self.there.carry_out(self.there.core.abandon(token, self.there.step(token)))
            return []
        token = self.there.tokens + 1
        self.sent[token] = who, verb, options.get("id", "t")
        request = self._request(producer, verb, names, options)
        if isinstance(request, EndTxnRequest):
            producer.keeps_epoch = keeps
        if isinstance(request, EndTxnRequest | AddPartitionsToTxnRequest):
            request = replace(request, keeps_epoch=keeps)
        self.there.ask(request)
        return []

    def _request(self, producer: Producer, verb: str, names: list[str], options: dict[str, str]) -> Request:
        name = "" if options.get("id") == "empty" else options.get("id", "t").replace("long", "x" * 1025)
        timeout_ms = int(options.get("timeout", 60_000))
        ends = verb in ("commit", "abort")
        mine = self._named(options, producer.transaction if ends else producer.identity)
        if verb == "init":
            return InitProducerIdRequest(name, timeout_ms, *(mine if "again" in names or "as" in options else (-1, -1)))
        if verb in ("add", "verify"):
            topics = tuple(_topic(word) for word in names)
            return AddPartitionsToTxnRequest(name, *mine, topics, verb == "verify")
        if verb == "admin-abort":
            return AbortTransactionRequest(name, "fence" in names)
        if verb == "join":
            scope = options.get("scope", "q")
            version = int(options.get("version", 0))
            return JoinTransactionRequest(name, scope, version, options.get("member", "m"), timeout_ms)
        if ends:
            members = tuple(
                self.producers[member].identity.producer_id
                for member in options.get("winners", "").split(",")
                if member
            )
            version = int(options.get("version", NO_VERSION))
            return EndTxnRequest(name, *mine, verb == "commit", version, options.get("scope", ""), members)
        raise ScriptError(f"no step is called {verb}")

    def _named(self, options: dict[str, str], default: Identity) -> Identity:
        if "as" not in options:
            return default
        pid, _, epoch = options["as"].removeprefix("P").partition("/")
        return Identity(int(pid) + FIRST_ID, int(epoch))

    def _news(self) -> list[Happened]:
        there = self.there
        news: list[Happened] = []
        for token, response in there.answers.items():
            if token not in self.seen_answers:
                self.seen_answers.add(token)
                if token in self.sent:
                    who, verb, _ = self.sent.pop(token)
                    self._hear(self.producers[who], response)
                    news.append(Happened("->", f"{who} {verb}: {_answered(response)}", _reason(response)))
        news += [_written(record) for record in there.written[self.seen_records :]]
        self.seen_records = len(there.written)
        news += [happened for order in there.orders for happened in _ordered(order)]
        self.ordered += there.orders
        there.orders.clear()
        news += [_asked(order) for order in there.lookups if not any(order is seen for seen in self.seen_lookups)]
        self.seen_lookups = list(there.lookups)
        for name in sorted({*there.core.transactions, *self.states}):
            described = there.core.describe(name)
            state = _state(described)
            if self.states.get(name, "") != state:
                self.states[name] = state
                news.append(Happened("==", f"{name} {state}"))
        return news

    def _hear(self, producer: Producer, response: Response) -> None:
        if isinstance(response, EndTxnResponse) and producer.keeps_epoch:
            return
        if isinstance(response, InitProducerIdResponse | EndTxnResponse) and response.producer_id >= 0:
            producer.identity = producer.transaction = Identity(response.producer_id, response.producer_epoch)
        elif isinstance(response, JoinTransactionResponse) and response.producer_id >= 0:
            producer.identity = Identity(response.producer_id, response.producer_epoch)
            producer.transaction = Identity(response.transaction_producer_id, response.producer_epoch)


def _places(word: str) -> list[tuple[str, int]]:
    match = _TOPIC.fullmatch(word)
    if match is None:
        raise ScriptError(f"{word} names no partition")
    return [(match[1], int(number)) for number in match[2].split(",")]


def _topic(word: str) -> TransactionTopic:
    places = _places(word)
    return TransactionTopic(places[0][0], f"id-{places[0][0]}", tuple(number for _, number in places))


def _name(producer_id: int, epoch: int) -> str:
    return f"P{producer_id - FIRST_ID}/{epoch}" if producer_id >= 0 else "-"


def _answered(response: Any) -> str:
    code = ErrorCode(response.error_code)
    if code is not ErrorCode.NONE:
        return code.name
    words = [code.name]
    if isinstance(response, InitProducerIdResponse | EndTxnResponse):
        words.append(_name(response.producer_id, response.producer_epoch))
    if isinstance(response, InitProducerIdResponse) and response.previous_outcome:
        words.append("previous=" + ("", "committed", "aborted")[response.previous_outcome])
    if isinstance(response, JoinTransactionResponse):
        words.append(_name(response.producer_id, response.producer_epoch))
        if response.transaction_producer_id >= 0:
            words.append(f"transaction={_name(response.transaction_producer_id, response.producer_epoch)}")
    if isinstance(response, AddPartitionsToTxnResponse) and response.producer_id >= 0:
        words.append(_name(response.producer_id, response.producer_epoch))
    if isinstance(response, AbortTransactionResponse):
        words.append("aborted" if response.aborted else "nothing-open")
    if getattr(response, "committed_version", NO_VERSION) != NO_VERSION:
        words.append(f"version={response.committed_version}")
    return " ".join(words)


def _reason(response: Any) -> str:
    return str(response.error_message)


def _written(record: TransactionRecord) -> Happened:
    if isinstance(record, IdentityRecord):
        words = [f"id {record.transactional_id}", _name(*record.identity)]
        if record.previous is not None:
            words.append(f"after={_name(*record.previous.identity)}:{Ended(record.previous.how).name}")
        if record.completing is not None:
            parts = ",".join(
                f"P{pid - FIRST_ID}:{'commit' if yes else 'abort'}" for pid, yes in record.completing.verdicts
            )
            words.append(f"completing={_name(*record.completing.identity)}[{parts}]")
        if record.committed_version != NO_VERSION:
            words.append(f"version={record.committed_version}")
        if record.scope:
            words.append(f"scope={record.scope}")
        if record.kept is not None:
            words.append(f"kept={_name(*record.kept)}")
        return Happened("++", " ".join(words))
    if isinstance(record, IdentityTombstone):
        return Happened("++", f"id {record.transactional_id} erased")
    name = f"member P{record.producer_id - FIRST_ID} of {record.transactional_id} {_name(*record.transaction)}"
    if isinstance(record, MemberTombstone):
        return Happened("++", f"{name} erased")
    assert isinstance(record, MemberRecord)
    words = [name, *(f"{topic.name}/{','.join(map(str, topic.partitions))}" for topic in record.topics)]
    if record.version != NO_VERSION:
        words.append(f"version={record.version} name={record.name}")
    if record.started_wall_ms == NOT_STARTED:
        words.append("carried")
    return Happened("++", " ".join(words))


def _ordered(order: WriteMarkers) -> list[Happened]:
    """A line for all partitions that get the same ends."""
    alike: dict[str, list[str]] = {}
    for place in sorted(order.partitions):
        ends = (f"{_name(pid, epoch)}:{'commit' if yes else 'abort'}" for pid, epoch, yes in sorted(order.ends(place)))
        alike.setdefault(",".join(ends), []).append(f"{place.topic}/{place.partition}")
    return [Happened("=>", f"markers {ends} {' '.join(places)}") for ends, places in alike.items()]


def _asked(order: FindOpen) -> Happened:
    places = " ".join(f"{place.topic}/{place.partition}" for place in order.partitions)
    return Happened("=>", f"is {_name(order.producer_id, order.producer_epoch)} open in {places}")


def _state(described: DescribedTransaction) -> str:
    if described.error_code != ErrorCode.NONE:
        return "unknown"
    waits = f" waits={','.join(_words(described.waits_for))}" if described.waits_for else ""
    return f"{described.state} {_name(described.producer_id, described.producer_epoch)}{waits}"


def _words(texts: Iterable[str]) -> list[str]:
    return [text.split(" ")[0] for text in texts]


def _described(described: DescribedTransaction) -> Happened:
    words = [_state(described)]
    if described.error_code == ErrorCode.NONE:
        words.append(f"timeout={described.transaction_timeout_ms}")
        for member in described.members:
            topics = [f"{topic.name}/{','.join(map(str, topic.partitions))}" for topic in member.topics]
            words.append(f"[{' '.join([f'P{member.producer_id - FIRST_ID}', *filter(None, [member.name]), *topics])}]")
        if described.version != NO_VERSION:
            words.append(f"version={described.version}")
        if described.committed_version != NO_VERSION:
            words.append(f"committed={described.committed_version}")
        if described.previous_outcome:
            words.append(f"previous={described.previous_outcome.replace(' ', '-')}")
    reason = described.error_message or "; ".join(described.waits_for)
    return Happened("->", f"describe {described.transactional_id}: {' '.join(words)}", reason)
