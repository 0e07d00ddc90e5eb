"""The world of a script: the pure core of the coordinator, members with short names, a log, and a clock driven by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.groups.config import GroupConfig
from coordinator.groups.core import GroupCore
from coordinator.groups.expiry import EXPIRY_TIMER
from coordinator.groups.records import (
    CoordinatorRecord,
    GroupMetadataRecord,
    OffsetCommitRecord,
    decode_record,
    encode_record,
)
from coordinator.runtime.effects import Effects, Instant, RequestContext, TimerName
from protocol.messages.groups import (
    ListGroupsRequest,
)
from tests.coordinator.groups.steps import FewTopics, decide, load, step_of
from tests.scripts import laws, shown
from tests.scripts.requests import (
    DEFAULT_GROUP,
    Asked,
    Clients,
    asked,
    must_ask_again,
    must_be_good,
    next_id,
    settling,
    transaction,
    with_id,
)
from tests.scripts.script import Happened, Script, ScriptError, Step

TOPICS = {"t": 3, "u": 3}
"""The topics that exist, and how many partitions each has."""

FIRST_WALL_MS = 1_000_000
"""What the wall clock shows at time 0 of a script."""


@dataclass(slots=True)
class Sent:
    """A request that was sent: by whom, which, and about which group."""

    who: str
    verb: str
    group: str


class World:
    """Carries out the steps of one script, one after the other."""

    def __init__(self, script: Script) -> None:
        self.config = GroupConfig(**script.settings)
        self.now_ms = 0
        self.log: dict[bytes, bytes | None] = {}
        self.timers: dict[TimerName, int] = {}
        self.timers_fired = 0
        self.sent: dict[int, Sent] = {}
        self.clients = Clients()
        self.asking = ""
        self.ids_of: dict[str, int] = {}
        self.states: dict[str, str] = {}
        self.tokens = 0
        self.core = GroupCore(self.config, self._new_member_id, FewTopics(_exists))
        if script.given:
            self._given(dict(word.split("=", 1) for word in script.given))

    def run(self, step: Step) -> list[Happened]:
        """Does what a step says; gives the answers, the records and the state if it changed, in this order."""
        what = asked(step)
        waits = what.verb == "wait"
        before = self._all_states()
        happened = self._advance(step.time_ms, late="late" in what.words)
        if not waits and (happened or before != self._all_states()):
            raise ScriptError(f"line {step.line}: a timer came before this step; write a wait: {happened}")
        happened += self._do(what)
        happened.sort(key=lambda one: one.kind != "->")  # stable: answers first, each in its order
        self._check_laws()
        return happened + self._state(what.group)

    def _do(self, what: Asked) -> list[Happened]:
        if what.verb == "wait":
            return []
        if what.verb == "settle":
            must_be_good(what, [answer for one in settling(what) for answer in self._request(one)])
            return []
        if what.verb == "restart":
            self.config = replace(self.config, **{name: int(value) for name, value in what.options.items()})
            return self._restart()
        if what.verb == "expire":
            return self._expire()
        if what.verb == "unload":
            return self._carry_out(self.core.unload(step_of(self.core, self._now())))
        if what.verb == "disconnect":
            return self._disconnect(what)
        if what.verb == "delete-topic":
            slices = self.core.forget_topics(lambda topic, _: topic in what.names)
            return [happened for effects in slices for happened in self._carry_out(effects)]
        if what.verb == "end":
            ends = [(*transaction(name), how == "commit") for name, how in what.options.items()]
            return self._carry_out(self.core.end_transactions(ends, step_of(self.core, self._now())))
        if what.verb == "describe":
            return [shown.described(self.core.describe(what.group))]
        if what.verb == "list":
            request = self.clients.request(what)
            assert isinstance(request, ListGroupsRequest)
            listed = self.core.list(frozenset(request.states_filter), frozenset(request.protocol_types_filter))
            return [shown.listed(listed)]
        return self._request(what)

    def finish(self) -> None:
        """Ends the script: whatever still waits is answered when the shard is unloaded, and nothing is left over."""
        self._carry_out(self.core.unload(step_of(self.core, self._now())))
        if self.sent:
            raise ScriptError(f"never answered: {list(self.sent.values())}")
        if self.timers:
            raise ScriptError(f"timers without a group: {self.timers}")

    def _request(self, what: Asked) -> list[Happened]:
        """One request and what comes of it. A join that is told to ask with an id does so at once."""
        self.tokens += 1
        token = self.tokens
        self.sent[token] = Sent(what.who, what.verb, what.group)
        self.asking = what.who
        context = RequestContext(token, what.who, f"host-of-{what.who}")
        effects = decide(self.core, self.clients.request(what), context, self._now())
        if what.verb == "join" and effects.replies and must_ask_again(effects.replies[0].response):
            (told,) = effects.replies
            effects.replies.clear()
            del self.sent[token]
            self.clients.hear(what.who, what.group, told.response)
            return self._carry_out(effects) + self._request(with_id(what))
        return self._carry_out(effects)

    def _disconnect(self, what: Asked) -> list[Happened]:
        happened: list[Happened] = []
        for token, sent in list(self.sent.items()):
            if sent.who == what.who and (not what.names or sent.verb in what.names):
                del self.sent[token]
                happened += self._carry_out(self.core.abandon(token, step_of(self.core, self._now())))
        return happened

    def _carry_out(self, effects: Effects) -> list[Happened]:
        happened: list[Happened] = []
        for record in effects.records:
            assert isinstance(record, CoordinatorRecord)
            self.core.apply(record)
            key, value = encode_record(record)
            self.log.pop(key, None)
            self.log[key] = value
        happened += shown.written(effects.records)
        for name, deadline_ms in effects.timers.items():
            if deadline_ms is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = deadline_ms
        for token, response in effects.replies:
            sent = self.sent.pop(token, None)
            if sent is None:
                raise ScriptError(f"an answer to no request, or a second one: {response}")
            self.clients.hear(sent.who, sent.group, response)
            happened.append(shown.answered(sent.who, sent.verb, response))
        assert effects.rest is None, "a script has no group that is too large for one slice"
        return happened

    def _advance(self, to_ms: int, late: bool) -> list[Happened]:
        happened: list[Happened] = []
        while due := sorted((deadline_ms, name) for name, deadline_ms in self.timers.items() if deadline_ms <= to_ms):
            deadline_ms, name = due[0]
            self.now_ms = to_ms if late else deadline_ms
            del self.timers[name]
            self.timers_fired += 1
            happened += self._carry_out(self.core.on_timer(name, step_of(self.core, self._now())))
        self.now_ms = to_ms
        return happened

    def _all_states(self) -> list[Happened]:
        return [shown.state(self.core.describe(group)) for group in self.core.groups]

    def _restart(self) -> list[Happened]:
        self.core = GroupCore(self.config, self._new_member_id, FewTopics(_exists))
        self._replay(self.core)
        self.timers.clear()
        self.sent.clear()
        return self._carry_out(load(self.core, self._now()))

    def _expire(self) -> list[Happened]:
        """One look at everything that may have expired, as a daemon does every few minutes."""
        self._carry_out(self.core.start_expiry(step_of(self.core, self._now()), 0))
        happened = self._carry_out(self.core.on_timer(EXPIRY_TIMER, step_of(self.core, self._now())))
        assert not self.core.expiry.under_way, "a script has so few offsets that one slice is enough"
        stopped = step_of(self.core, self._now())
        self.core.expiry.stop(stopped)
        return happened + self._carry_out(stopped.effects)

    def _replay(self, core: GroupCore) -> None:
        for key, value in self.log.items():
            record = decode_record(key, value)
            assert record is not None
            core.apply(record)

    def _check_laws(self) -> None:
        replayed = GroupCore(self.config, self._new_member_id, FewTopics(_exists))
        self._replay(replayed)
        laws.memory_is_what_the_log_says(self.core, replayed)
        answered = [token for token in range(1, self.tokens + 1) if token not in self.sent]
        laws.events_of_no_meaning_do_nothing(self.core, self.timers, answered, self._now())

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

    def _new_member_id(self, _: str) -> str:
        """The first member id of who asks is its own name, so that scripts read well; the next ones are A2, A3, ..."""
        return next_id(self.ids_of, self.asking)

    def _now(self) -> Instant:
        return Instant(self.now_ms, FIRST_WALL_MS + self.now_ms)


def _exists(topic: str, partition: int) -> bool:
    return 0 <= partition < TOPICS.get(topic, 0)
