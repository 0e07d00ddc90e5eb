"""What may be a rebalance listener, and what is said of anything else."""

from __future__ import annotations

from typing import Any

import pytest

from client import Consumer
from client.consumer.rebalance_listener import CALLBACKS, RebalanceListener, check_listener, listener_method


class OnlyAssigned:
    """A listener of a class of its own."""

    def on_partitions_assigned(self, tps: Any, reason: str) -> None:
        pass


class OfAiokafka:
    """As aiokafka has them: without a reason."""

    async def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Any) -> None:
        pass


class WithMore(RebalanceListener):
    def on_partitions_revoked(self, tps: Any, reason: str, why: str = "") -> None:
        pass

    def on_partitions_lost(self, *args: Any) -> None:
        pass


class Attribute:
    on_partitions_lost = "later"


class BuiltIn:
    on_partitions_lost = print
    on_partitions_revoked = map  # it does not tell what it takes


@pytest.mark.parametrize("listener", [RebalanceListener(), OnlyAssigned(), WithMore(), BuiltIn()])
def test_what_can_be_called_is_a_listener(listener: object) -> None:
    check_listener(listener)


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (
            OfAiokafka(),
            r"on_partitions_revoked of OfAiokafka takes \(revoked.* def on_partitions_revoked\(self, tps, reason\)",
        ),
        (Attribute(), r"on_partitions_lost of Attribute is 'later', which cannot be called"),
        (object(), r"a object is no rebalance listener: it has none of on_partitions_revoked, "),
        (print, r"a builtin_function_or_method is no rebalance listener"),
        (WithMore, r"the listener is the class WithMore: pass an instance of it, WithMore\(\)"),
    ],
)
def test_anything_else_is_refused_in_subscribe(listener: Any, said: str) -> None:
    consumer = Consumer(group_id="g")
    with pytest.raises(TypeError, match=said):
        consumer.subscribe(["t"], listener=listener)
    consumer.subscribe(["t"])


def test_what_a_listener_lacks_is_not_called() -> None:
    found = {name: listener_method(OnlyAssigned(), name) for name in CALLBACKS}
    assert [name for name, method in found.items() if method is not None] == ["on_partitions_assigned"]
    assert listener_method(None, "on_partitions_lost") is None
