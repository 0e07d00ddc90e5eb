"""Whatever transactions and plain commits do to the same offsets: what shows is what a model in thirty lines says.

The model knows no records: it numbers what is told, and for each partition the highest number of what took effect counts.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from tests.coordinator.groups.keeper import Keeper

Place = tuple[str, str, int]
"""Group, topic, partition."""

GROUPS, TOPICS, PRODUCERS = ("g", "h"), ("t", "u"), (7, 8, 9)

PLACES = st.tuples(st.sampled_from(GROUPS), st.sampled_from(TOPICS), st.integers(0, 1))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *(
                    "tell",
                    "tell",
                    "tell",
                    "tell again",
                    "tell",
                    "commit",
                    "commit",
                    "end",
                    "end",
                    "end again",
                    "end together",
                ),
                *("erase", "delete", "forget", "restart", "compact", "wrong epoch"),
            )
        ),
        st.sampled_from(PRODUCERS),
        st.lists(PLACES, min_size=1, max_size=3, unique=True),
        st.booleans(),
    ),
    max_size=40,
)


class Model:
    """What was told to whom, and what counts."""

    def __init__(self) -> None:
        self.told = 0
        self.counts: dict[Place, tuple[int, int | None]] = {}
        """The number of what took effect last, and its offset; None for an erasure."""
        self.pending: dict[int, dict[Place, tuple[int, int]]] = {producer: {} for producer in PRODUCERS}

    def take_effect(self, place: Place, number: int, offset: int | None) -> None:
        """Unless something that was told later has."""
        if number > self.counts.get(place, (0, None))[0]:
            self.counts[place] = number, offset

    def end(self, producer: int, committed: bool) -> None:
        """A transaction is decided."""
        for place, (number, offset) in self.pending[producer].items():
            if committed:
                self.take_effect(place, number, offset)
        self.pending[producer].clear()

    def open(self, producer: int) -> set[Place]:
        """What the producer's transaction may still move: nothing else has counted since it was told."""
        return {
            place
            for place, (number, _) in self.pending[producer].items()
            if number > self.counts.get(place, (0, None))[0]
        }

    def shown(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that are decided."""
        return {place[1:]: offset for place, (_, offset) in self.counts.items() if place[0] == group and offset}


class History:
    """The core and the model, side by side."""

    def __init__(self) -> None:
        self.keeper = Keeper()
        self.model = Model()
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.ended: list[tuple[int, int, bool]] = []

    def act(self, action: str, producer: int, places: list[Place], committed: bool) -> None:
        """One step."""
        keeper, model = self.keeper, self.model
        model.told += 1
        number = model.told
        identity = producer, self.epochs[producer]
        if action == "tell":
            for place in places:
                group, topic, partition = place
                answer = keeper.commit_in_transaction(group, (topic, partition, number), producer=identity)
                assert answer.error_code == ErrorCode.NONE
                model.pending[producer][place] = number, number
        elif action == "tell again":
            for (group, topic, partition), (_, offset) in model.pending[producer].items():
                answer = keeper.commit_in_transaction(group, (topic, partition, offset), producer=identity)
                assert answer.error_code == ErrorCode.NONE
        elif action == "commit":
            for group, topic, partition in places:
                assert keeper.commit(group, (topic, partition, number)) == [ErrorCode.NONE]
                model.take_effect((group, topic, partition), number, number)
        elif action == "end":
            self._end([producer], committed)
        elif action == "end together":
            self._end(sorted(PRODUCERS, key=lambda one: (one * number) % 5), committed)
        elif action == "end again":
            for end in self.ended:
                keeper.end(end)
        elif action == "wrong epoch":
            keeper.end((producer, identity[1] + 1, committed), (producer, identity[1] - 1, committed))
        elif action == "restart":
            keeper.restart()
        elif action == "compact":
            keeper.log = {key: keeper.log[key] for key in keeper.log if keeper.log[key] is not None}
        else:
            self._erase(action, places, number)

    def check(self) -> None:
        """The core shows what the model holds, and its log says the same."""
        keeper, model = self.keeper, self.model
        unstable = {place for producer in PRODUCERS for place in model.open(producer)}
        for group in GROUPS:
            shown, waits = model.shown(group), {place[1:] for place in unstable if place[0] == group}
            assert keeper.fetch(group) == shown
            stable = {place: offset for place, offset in shown.items() if place not in waits}
            assert keeper.fetch_stable(group) == (stable, waits)
            told = any(place[0] == group for pending in model.pending.values() for place in pending)
            assert (group in keeper.core.groups) == bool(shown or told)
        for producer in PRODUCERS:
            assert keeper.core.open_epoch(producer) == (self.epochs[producer] if model.pending[producer] else None)
        replayed = keeper.replayed()
        assert replayed.durable_state() == keeper.core.durable_state()
        assert replayed.groups.open_transactions == keeper.core.groups.open_transactions

    def _end(self, producers: list[int], committed: bool) -> None:
        ends = [(producer, self.epochs[producer], committed == (producer % 2 == 0)) for producer in producers]
        self.keeper.end(*ends)
        for producer, _, outcome in ends:
            self.model.end(producer, outcome)
            self.epochs[producer] += 1
        self.ended += ends

    def _erase(self, action: str, places: list[Place], number: int) -> None:
        keeper, model = self.keeper, self.model
        group, topic, partition = places[0]
        if action == "erase":
            keeper.delete_offsets(group, (topic, partition))
            gone = [places[0]]
        elif action == "delete":
            keeper.delete(group)
            gone = [(group, name, index) for name in TOPICS for index in range(2)]
        else:
            for effects in keeper.core.forget_topics(lambda name, _: name == topic):
                keeper.carry_out(effects)
            gone = [(name, topic, index) for name in GROUPS for index in range(2)]
        for place in gone:
            model.take_effect(place, number, None)
            for pending in model.pending.values():
                if action == "delete":
                    pending.pop(place, None)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_offsets_in_transactions_are_those_of_the_model(steps: list[tuple[str, int, list[Place], bool]]) -> None:
    history = History()
    for step in steps:
        history.act(*step)
        history.check()
    for committed in (True, False):
        history.act("end together", 7, [("g", "t", 0)], committed)
        history.check()
    assert history.keeper.core.groups.open_transactions == {}
    for group in GROUPS:
        history.act("delete", 7, [(group, "t", 0)], True)
    assert history.keeper.live_keys() == set()
