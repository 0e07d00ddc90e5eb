"""What programs pass to ``Admin``, checked before anything is sent: each error names what to pass instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from client.errors import InvalidGroupIdError, InvalidRequestError
from client.transport.request_limits import text_fault
from protocol.subscription import TopicPartition

ValueT = TypeVar("ValueT")

LOWEST_INT64: Final = -(2**63)
"""Where the daemon judges what an offset below 0 means."""


def checked_text(what: str, text: object) -> str:
    """A string that a daemon reads.

    Raises ``TypeError`` for anything else, ``InvalidRequestError`` for one that is too long or has no UTF-8.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a string, not {_shown(text)}")
    fault = text_fault(text)
    if fault:
        raise InvalidRequestError(f"{what} cannot be sent: {fault}")
    return text


def checked_group(group_id: str) -> str:
    """``group_id``; raises ``InvalidGroupIdError`` for one that no daemon would read. Daemons judge the others."""
    if not isinstance(group_id, str):
        raise TypeError(f"a group id must be a string, not {_shown(group_id)}")
    fault = text_fault(group_id)
    if fault:
        raise InvalidGroupIdError(f"the group id cannot be sent: {fault}")
    return group_id


def checked_groups(call: str, group_ids: Sequence[str]) -> tuple[str, ...]:
    """What a call that takes group ids one by one was given."""
    _check_one_by_one(call, group_ids)
    return tuple(checked_group(group_id) for group_id in group_ids)


def checked_topics(call: str, names: Sequence[str]) -> tuple[str, ...]:
    """What a call that takes names of topics one by one was given."""
    return checked_names(call, "the name of a topic", names)


def checked_names(call: str, what: str, names: Sequence[str]) -> tuple[str, ...]:
    """What a call that takes names of some kind one by one was given."""
    _check_one_by_one(call, names)
    return tuple(checked_text(what, name) for name in names)


def checked_counts(call: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Numbers of partitions by topic."""
    checked_mapping(call, counts, 'names of topics with their numbers of partitions, such as {"orders": 4}')
    return {checked_text("the name of a topic", name): _count(name, count) for name, count in counts.items()}


def checked_mapping(call: str, given: Mapping[Any, ValueT], example: str) -> Mapping[Any, ValueT]:
    """A dictionary; raises ``TypeError`` saying what it is to hold for anything else."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{call} takes a dictionary of {example}, not {_shown(given)}")
    return given


def checked_config(config: Mapping[str, object | None] | None) -> dict[str, object | None]:
    """Settings of topics by their names."""
    if config is None:
        return {}
    checked_mapping("config", config, 'settings of a topic, such as {"retention.ms": 60_000}')
    for name, value in config.items():
        checked_text("the name of a setting", name)
        if value is not None and not isinstance(value, str | int | float):
            raise TypeError(f"the value of {name} must be a string, a number or a truth value, not {_shown(value)}")
        checked_text(f"the value of {name}", str(value))
    return dict(config)


def checked_partition(call: str, given: object) -> TopicPartition:
    """A partition, given as ``TopicPartition`` or as a pair."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f'{call} takes partitions as TopicPartition("orders", 0), not {_shown(given)}')
    topic, partition = given
    checked_text("the name of a topic", topic)
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise TypeError(f"the number of a partition of {topic!r} must be a whole number, not {_shown(partition)}")
    if not 0 <= partition < 2**31:
        raise ValueError(
            f"topic {topic!r} cannot have a partition {partition}: they are numbered from 0 and below 2**31"
        )
    return TopicPartition(topic, partition)


def checked_offset(partition: TopicPartition, offset: object, lowest: int = 0) -> int:
    """An offset from ``lowest`` on."""
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise TypeError(
            f"the offset of {partition.topic}-{partition.partition} must be a whole number, not {_shown(offset)}"
        )
    if not lowest <= offset < 2**63:
        raise ValueError(
            f"the offset of {partition.topic}-{partition.partition} is {offset}; it must be from {lowest} and below 2**63"
        )
    return offset


def checked_replication_factor(factor: object) -> int:
    """On how many nodes partitions are to be kept, -1 for the daemon's default."""
    if not isinstance(factor, int) or isinstance(factor, bool):
        raise TypeError(f"replication_factor must be a whole number, not {_shown(factor)}")
    if factor != -1 and not 1 <= factor < 2**15:
        raise ValueError(f"replication_factor is {factor}; it must be at least 1, or -1 for the daemon's default")
    return factor


def _count(topic: str, partitions: object) -> int:
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise TypeError(f"the number of partitions of topic {topic!r} must be a whole number, not {_shown(partitions)}")
    if not -(2**31) <= partitions < 2**31:
        raise ValueError(f"topic {topic!r} cannot have {partitions} partitions: the number must be below 2**31")
    return partitions


def _check_one_by_one(call: str, given: Sequence[object]) -> None:
    for item in given:
        if isinstance(item, list | tuple | set | frozenset | dict):
            raise TypeError(
                f'{call} takes names one by one, as in {call}("a", "b") or {call}(*names), not {_shown(item)}'
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
