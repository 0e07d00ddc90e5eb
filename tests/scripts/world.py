"""The world of a script: the pure core of the coordinator, members with short names, a log, and a clock driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.groups.config import GroupConfig
from coordinator.groups.core import GroupCore
from coordinator.groups.effects import Effects, Instant, RequestContext, TimerName
from coordinator.groups.records import (
    CoordinatorRecord,
    GenerationRecord,
    GroupMetadataRecord,
    OffsetCommitRecord,
    decode_record,
    encode_record,
)
from tests.scripts import shown
from tests.scripts.requests import Client, request_of
from tests.scripts.script import Happened, Script, ScriptError, Step

DEFAULT_GROUP = "g"
TOPICS = {"t": 3, "u": 3}
"""The topics that exist, and how many partitions each has."""


@dataclass(slots=True)
class Sent:
    """A request that was sent: by whom, and which."""

    who: str
    verb: str


class World:
    """Carries out the steps of one script, one after the other."""

    def __init__(self, script: Script) -> None:
        options = dict(word.split("=", 1) for word in script.config)
        self.config = GroupConfig(**{name: int(value) for name, value in options.items()})
        self.now_ms = 0
        self.log: dict[bytes, bytes | None] = {}
        self.timers: dict[TimerName, int] = {}
        self.sent: dict[int, Sent] = {}
        self.clients: dict[str, Client] = {}
        self.joins: dict[str, int] = {}
        self.states: dict[str, str] = {}
        self.tokens = 0
        self.core = GroupCore(self.config, self._new_member_id)
        if script.given:
            self._given(dict(word.split("=", 1) for word in script.given))

    def run(self, step: Step) -> list[Happened]:
        """Does what a step says; gives the answers, the records and the state if it changed, in this order."""
        waits = step.words[0] == "wait"
        before = self._all_states()
        happened = self._advance(step.time_ms, late="late" in step.words)
        if not waits and (happened or before != self._all_states()):
            raise ScriptError(f"line {step.line}: a timer came before this step; write a wait: {happened}")
        who, verb, words = self._words(step)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        group = options.get("group", DEFAULT_GROUP)
        if verb == "restart":
            self._restart()
        elif verb == "unload":
            happened += self._carry_out(self.core.unload())
        elif verb == "disconnect":
            happened += self._disconnect(who)
        elif verb == "describe":
            happened.append(shown.described(self.core.describe(group)))
        elif verb == "list":
            listed = self.core.list(frozenset(word.replace("_", " ") for word in words if "=" not in word))
            happened.append(shown.listed(listed))
        elif not waits:
            happened += self._request(who, verb, words, group)
        happened.sort(key=lambda one: one.kind != "->")  # stable: answers first, each in its order
        self._check_replay()
        return happened + self._state(group)

    def finish(self) -> None:
        """Ends the script: whatever still waits is answered when the shard is unloaded, and nothing is left over."""
        self._carry_out(self.core.unload())
        if self.sent:
            raise ScriptError(f"never answered: {list(self.sent.values())}")
        if self.timers:
            raise ScriptError(f"timers without a group: {self.timers}")

    def _words(self, step: Step) -> tuple[str, str, list[str]]:
        if step.words[0] in ("wait", "restart", "unload", "describe", "list"):
            return "", step.words[0], list(step.words[1:])
        if len(step.words) < 2:
            raise ScriptError(f"line {step.line}: a step is WHO VERB ..., or wait, restart, unload, describe, list")
        return step.words[0], step.words[1], list(step.words[2:])

    def _request(self, who: str, verb: str, words: list[str], group: str) -> list[Happened]:
        self.tokens += 1
        context = RequestContext(self.tokens, who, f"host-of-{who}")
        self.sent[self.tokens] = Sent(who, verb)
        now = self._now()
        request = request_of(self.clients, who, verb, words, group)
        decide: dict[str, Callable[[], Effects]] = {
            "join": lambda: self.core.join(request, context, now),
            "sync": lambda: self.core.sync(request, context, now),
            "heartbeat": lambda: self.core.heartbeat(request, context, now),
            "leave": lambda: self.core.leave(request, context, now),
            "commit": lambda: self.core.commit(request, context, now, lambda t, p: 0 <= p < TOPICS.get(t, 0)),
            "fetch": lambda: self.core.fetch_offsets(request, context, now),
        }
        return self._carry_out(decide[verb]())

    def _disconnect(self, who: str) -> list[Happened]:
        happened: list[Happened] = []
        for token in [token for token, sent in self.sent.items() if sent.who == who]:
            del self.sent[token]
            happened += self._carry_out(self.core.abandon(token, self._now()))
        return happened

    def _carry_out(self, effects: Effects) -> list[Happened]:
        happened: list[Happened] = []
        for record in effects.records:
            assert isinstance(record, CoordinatorRecord)
            self.core.apply(record)
            key, value = encode_record(record)
            self.log.pop(key, None)
            self.log[key] = value
            if not isinstance(record, GenerationRecord):  # one goes with each CompletingRebalance, which is shown
                happened.append(shown.written(record))
        for name, deadline_ms in effects.timers.items():
            if deadline_ms is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = deadline_ms
        for token, response in effects.replies:
            sent = self.sent.pop(token, None)
            if sent is None:
                raise ScriptError(f"an answer to nobody, or a second one: {response}")
            if sent.who in self.clients:
                self.clients[sent.who].hear(response)
            happened.append(shown.answered(sent.who, sent.verb, response))
        return happened

    def _advance(self, to_ms: int, late: bool) -> list[Happened]:
        happened: list[Happened] = []
        while due := sorted((deadline_ms, name) for name, deadline_ms in self.timers.items() if deadline_ms <= to_ms):
            deadline_ms, name = due[0]
            self.now_ms = to_ms if late else deadline_ms
            del self.timers[name]
            happened += self._carry_out(self.core.on_timer(name, self._now()))
        self.now_ms = to_ms
        return happened

    def _all_states(self) -> list[Happened]:
        return [shown.state(self.core.describe(group)) for group in self.core.groups]

    def _restart(self) -> None:
        self.core = GroupCore(self.config, self._new_member_id)
        self._replay(self.core)
        self.timers.clear()
        self.sent.clear()
        self._carry_out(self.core.loaded(self._now()))

    def _replay(self, core: GroupCore) -> None:
        for key, value in self.log.items():
            record = decode_record(key, value)
            assert record is not None
            core.apply(record)

    def _check_replay(self) -> None:
        """A law, not an expectation: the log tells the whole durable state."""
        replayed = GroupCore(self.config, self._new_member_id)
        self._replay(replayed)
        if self.core.groups and replayed.durable_state() != self.core.durable_state():
            raise ScriptError(f"the log says {replayed.durable_state()}, the memory {self.core.durable_state()}")

    def _state(self, group: str) -> list[Happened]:
        state = shown.state(self.core.describe(group))
        if state.text == self.states.get(group, "Dead"):
            return []
        self.states[group] = state.text
        return [state]

    def _given(self, options: dict[str, str]) -> None:
        record: GroupMetadataRecord | OffsetCommitRecord = GroupMetadataRecord(
            options.get("group", DEFAULT_GROUP), int(options["generation"]), "consumer", None, None, "given", 0
        )
        key, value = encode_record(record)
        self.log[key] = value
        self._restart()
        self._state(record.group_id)

    def _new_member_id(self, client_id: str) -> str:
        """A client's first member id is its own name, so that scripts read well; the next ones are A2, A3, ..."""
        self.joins[client_id] = self.joins.get(client_id, 0) + 1
        return client_id if self.joins[client_id] == 1 else f"{client_id}{self.joins[client_id]}"

    def _now(self) -> Instant:
        return Instant(self.now_ms, 1_000_000 + self.now_ms)
