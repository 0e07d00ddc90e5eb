"""Whatever is committed, erased, deleted, left to expire and replayed: the offsets are those of a model in twenty lines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from tests.coordinator.groups.keeper import PARTITIONS, Keeper

RETENTION_MS, INTERVAL_MS = 10_000, 1_000
GROUPS, TOPICS = ("g", "h"), ("t", "u")

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "commit",
                "commit",
                "commit",
                "wait",
                "wait long",
                "erase",
                "delete",
                "forget",
                "restart",
                "come",
                "go",
                "replay",
            )
        ),
        st.sampled_from(GROUPS),
        st.sampled_from(TOPICS),
        st.integers(0, PARTITIONS - 1),
        st.integers(0, 9_999),
    ),
    max_size=40,
)


class Model:
    """Offsets with the moment of their commit, one member at most a group, and who became empty when."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[tuple[str, int], tuple[int, int]]] = {group: {} for group in GROUPS}
        self.topic: dict[str, str] = {}
        self.empty_since: dict[str, int] = {}

    def look(self, at_ms: int) -> None:
        """One pass of the expiry: what is old and not in use goes, then groups of which nothing is left."""
        for group, offsets in self.offsets.items():
            for place, (_, since_ms) in list(offsets.items()):
                if group in self.topic:
                    old = since_ms + RETENTION_MS <= at_ms and place[0] != self.topic[group]
                else:
                    old = max(since_ms, self.empty_since.get(group, 0)) + RETENTION_MS <= at_ms
                if old:
                    del offsets[place]
            if not offsets and group not in self.topic:
                self.empty_since.pop(group, None)

    def known(self, group: str) -> bool:
        """Whether anybody has heard of the group."""
        return bool(self.offsets[group]) or group in self.topic or group in self.empty_since


class History:
    """The core and the model, side by side."""

    def __init__(self) -> None:
        self.keeper = Keeper(RETENTION_MS, INTERVAL_MS)
        self.model = Model()
        self.next_look_ms = INTERVAL_MS
        self.member: dict[str, str] = {}

    def act(self, action: str, group: str, topic: str, partition: int, number: int) -> None:
        """One step."""
        keeper, model = self.keeper, self.model
        now_ms = keeper.now.ms
        if action == "commit":
            identity = (
                {"member": self.member[group], "generation": self._generation(group)} if group in self.member else {}
            )
            assert keeper.commit(group, (topic, partition, number), **identity) == [ErrorCode.NONE]  # type: ignore[arg-type]
            model.offsets[group][topic, partition] = (number, now_ms)
        elif action.startswith("wait"):
            self._wait(number if "long" in action else number // 20)
        elif action == "erase":
            self._erase(group, topic, partition)
        elif action == "delete":
            wanted = ErrorCode.NONE if model.known(group) else ErrorCode.GROUP_ID_NOT_FOUND
            wanted = ErrorCode.NON_EMPTY_GROUP if group in model.topic else wanted
            assert keeper.delete(group).results[0].error_code == wanted
            if wanted == ErrorCode.NONE:
                model.offsets[group].clear()
                model.empty_since.pop(group, None)
        elif action == "forget":
            for slice_ in keeper.core.forget_topics(lambda name, _: name == topic):
                keeper.carry_out(slice_)
            for offsets in model.offsets.values():
                for place in [place for place in offsets if place[0] == topic]:
                    del offsets[place]
        elif action == "restart":
            keeper.restart()
            self.next_look_ms = now_ms + INTERVAL_MS
        elif action == "come" and group not in self.member:
            (self.member[group],) = keeper.consumers(group, [topic])
            model.topic[group] = topic
            model.empty_since.pop(group, None)
        elif action == "go" and group in self.member:
            keeper.leave(group, self.member.pop(group))
            del model.topic[group]
            model.empty_since[group] = now_ms

    def check(self) -> None:
        """The core shows what the model holds, and its log says the same."""
        for group in GROUPS:
            shown = {place: offset for place, (offset, _) in self.model.offsets[group].items()}
            assert self.keeper.fetch(group) == shown
            assert (group in self.keeper.core.groups) == self.model.known(group)
        assert self.keeper.replayed().durable_state() == self.keeper.core.durable_state()
        kept = sum(len(offsets) for offsets in self.model.offsets.values())
        assert kept <= len(self.keeper.live_keys()) <= kept + 2 * len(self.keeper.core.groups), (
            "nothing stays in the log"
        )

    def _wait(self, ms: int) -> None:
        until_ms = self.keeper.now.ms + ms
        while self.next_look_ms <= until_ms:
            self.model.look(self.next_look_ms)
            self.next_look_ms += INTERVAL_MS
        self.keeper.pass_ms(ms)

    def _erase(self, group: str, topic: str, partition: int) -> None:
        answer = self.keeper.delete_offsets(group, (topic, partition))
        if not self.model.known(group):
            assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            return
        code = answer.topics[0].partitions[0].error_code
        if self.model.topic.get(group) == topic:
            assert code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        else:
            assert code == ErrorCode.NONE
            self.model.offsets[group].pop((topic, partition), None)

    def _generation(self, group: str) -> int:
        return self.keeper.core.groups[group].generation


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_offsets_are_those_of_the_model(steps: list[tuple[str, str, str, int, int]]) -> None:
    history = History()
    for step in steps:
        history.act(*step)
        history.check()
    for group in list(history.member):
        history.act("go", group, "t", 0, 0)
    history.act("wait long", "g", "t", 0, RETENTION_MS + INTERVAL_MS)
    history.check()
    assert history.keeper.core.groups == {}, "left alone, everything goes"
    assert history.keeper.live_keys() == set()
