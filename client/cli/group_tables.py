"""How groups look: JSON with the names that API.md promises, tables that fit the terminal for people."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from client.admin import OffsetResetPlan
from client.cli.output import counted, local_time, number_ranges, table
from client.types.descriptions import GroupDescription, MemberDescription, PartitionLag
from client.types.records import TopicPartition

_LABEL_WIDTH: Final = 16
_OURS: Final = "aiocohort"
"""What our own clients say that they are. Where all members are, a table need not say so of each."""


def as_object(group: GroupDescription, offsets: Sequence[PartitionLag]) -> dict[str, Any]:
    """A group for JSON; the names are part of the contract in API.md."""
    return {
        "group": group.group_id,
        "state": group.state,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
        "leader": group.leader or None,
        "last_rebalance_reason": group.last_rebalance_reason,
        "waiting_for": list(group.waiting_for),
        "pending_members": group.pending_members,
        "empty_since_ms": group.empty_since_ms,
        "pending_offsets": group.pending_offsets,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "group_instance_id": member.group_instance_id,
                "host": member.host,
                "software": member.software or None,
                "topics": list(member.topics),
                "assignment": [partition._asdict() for partition in member.assignment],
            }
            for member in group.members
        ],
        "members_without_partitions": [member.member_id for member in group.idle_members],
        "offsets": [entry._asdict() for entry in offsets],
    }


def as_text(group: GroupDescription, offsets: Sequence[PartitionLag], width: int | None) -> str:
    """A group for people, on a terminal of ``width`` columns; ``None`` cuts and folds nothing."""
    parts = [*_facts(group, width), "", _members(group, width), ""]
    if not offsets:
        return "\n".join([*parts, "no committed offsets"])
    owners = _short_names(group.members)
    lags = [
        (each.topic, each.partition, each.committed, each.end, each.lag, owners.get(each.member_id)) for each in offsets
    ]
    parts.append(cut_table(("topic", "partition", "committed", "end", "lag", "owner"), lags, width))
    parts.append(f"\n{_total_lag(offsets)}")
    return "\n".join(parts)


def _total_lag(offsets: Sequence[PartitionLag]) -> str:
    """The sum of what is known: a partition without a committed offset has no lag that could be added up."""
    known = [each.lag for each in offsets if each.lag is not None]
    unknown = len(offsets) - len(known)
    parts = [f"{sum(known):,}"] if known else []
    parts += [f"unknown for {counted(unknown, 'partition')}"] if unknown else []
    return f"total lag {', '.join(parts)}"


def plan_object(plan: OffsetResetPlan) -> dict[str, Any]:
    """A plan for JSON."""
    return {
        "group": plan.group_id,
        "state": plan.state,
        "executed": plan.executed,
        "blocked": plan.blocked or None,
        "partitions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "current": row.current,
                "new": row.new,
                "difference": row.difference,
                "note": row.note,
            }
            for row in plan.partitions
        ],
    }


def plan_text(plan: OffsetResetPlan, width: int | None) -> str:
    """A plan for people; without its notes as a column when there are none."""
    rows: list[tuple[Any, ...]] = [
        (row.topic, row.partition, row.current, row.new, row.difference, row.note) for row in plan.partitions
    ]
    columns = ("topic", "partition", "current", "new", "difference", "note")
    if not any(row.note for row in plan.partitions):
        return cut_table(columns[:-1], [row[:-1] for row in rows], width)
    return folding_table(columns, rows, width)


def assignment_text(partitions: Sequence[TopicPartition]) -> str:
    """Partitions for people: ``lines 0-3 7, errors 0``."""
    by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return ", ".join(f"{topic} {number_ranges(numbers)}" for topic, numbers in by_topic.items())


def terminal_width() -> int | None:
    """How many columns people see; ``None`` when the output goes to a file or a program and ``COLUMNS`` is not set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return None


def folding_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None) -> str:
    """A table; one block of lines a row where the table is wider than ``width``, so that ids stay whole to be copied."""
    whole = table(columns, rows)
    if _fits(whole, width):
        return whole
    label = max(map(len, columns)) + 2
    blocks = []
    for row in rows:
        cells = zip(columns, row, strict=True)
        blocks.append("\n".join(f"{name:{label}}{'-' if cell is None else cell}" for name, cell in cells))
    return "\n\n".join(blocks)


def cut_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None) -> str:
    """A table whose longest texts lose their middle until it fits ``width``: ``consumer…8f21``."""
    whole = table(columns, rows)
    longest = max((len(cell) for row in rows for cell in row if isinstance(cell, str)), default=0)
    while not _fits(whole, width) and longest > 8:
        longest -= 1
        cut = [[_cut(cell, longest) if isinstance(cell, str) else cell for cell in row] for row in rows]
        whole = table(columns, cut)
    return whole


def _facts(group: GroupDescription, width: int | None) -> list[str]:
    protocol = f"{group.protocol} ({group.protocol_type})" if group.protocol else group.protocol_type or "-"
    facts = {
        "group": group.group_id,
        "state": group.state,
        "generation": str(group.generation),
        "protocol": protocol,
        "coordinator": group.coordinator,
        "last rebalance": group.last_rebalance_reason or "-",
    }
    if group.waiting_for:
        facts["waiting for"] = ", ".join(group.waiting_for)
    if group.pending_members:
        facts["pending"] = f"{counted(group.pending_members, 'member')} with a new id, not joined yet"
    if group.pending_offsets:
        facts["undecided"] = f"{counted(group.pending_offsets, 'offset')} of open transactions"
    if group.empty_since_ms is not None:
        facts["empty since"] = local_time(group.empty_since_ms)
    return facts_text(facts, width)


def facts_text(facts: Mapping[str, str], width: int | None, label_width: int = _LABEL_WIDTH) -> list[str]:
    """Lines with a name and its value each, the values below one another."""
    return [line for name, value in facts.items() for line in _fact(name, value, width, label_width)]


def _fact(name: str, value: str, width: int | None, label_width: int) -> list[str]:
    """One line, or several with the value in a column of its own; words, such as ids, stay whole."""
    room = max(20, width - label_width) if width is not None else len(value) + 1
    values = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{label:{label_width}}{part}" for label, part in zip([name, *[""] * len(values)], values, strict=False)]


def _members(group: GroupDescription, width: int | None) -> str:
    if not group.members:
        return "no members"
    static = any(member.group_instance_id is not None for member in group.members)
    others = any(member.software and not member.software.startswith(_OURS) for member in group.members)
    told = (*(("instance",) if static else ()), "client", *(("software",) if others else ()), "host")
    columns = ("member", *told, "assignment")
    rows = [
        (
            member.member_id,
            *((member.group_instance_id,) if static else ()),
            member.client_id,
            *((member.software or None,) if others else ()),
            member.host,
            assignment_text(member.assignment) or None,
        )
        for member in group.members
    ]
    text = folding_table(columns, rows, width)
    idle = len(group.idle_members)
    if idle:
        text += f"\n\n{idle} of {counted(len(group.members), 'member')} {'owns' if idle == 1 else 'own'} no partition"
    return text


def _short_names(members: Sequence[MemberDescription]) -> Mapping[str | None, str]:
    """Members by id as a reader tells them apart: by instance id, by client id if that is one member's only, or by id."""
    clients = Counter(member.client_id for member in members)
    return {
        member.member_id: member.group_instance_id
        or (member.client_id if clients[member.client_id] == 1 else member.member_id)
        for member in members
    }


def _fits(text: str, width: int | None) -> bool:
    return width is None or max(map(len, text.splitlines()), default=0) <= width


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[-tail:]}"
