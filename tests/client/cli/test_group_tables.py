"""How groups look: for people on wide and narrow terminals, and as JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from client.admin import OffsetResetPlan, PartitionReset
from client.cli.group_tables import (
    as_object,
    as_text,
    assignment_text,
    cut_table,
    folding_table,
    plan_object,
    plan_text,
    terminal_width,
)
from client.types.descriptions import GroupDescription, MemberDescription, PartitionLag
from client.types.records import TopicPartition

T = [TopicPartition("t", index) for index in range(4)]


def member(name: str, *owned: TopicPartition, client: str = "app", instance: str | None = None) -> MemberDescription:
    return MemberDescription(name, instance, client, "10.0.0.7", owned, b"", ("t",))


GROUP = GroupDescription(
    "readers",
    "Stable",
    3,
    "consumer",
    "range",
    "127.0.0.1:7337",
    "app-1",
    "member app-2 joined",
    (member("app-1", *T), member("app-2")),
)
LAGS = [PartitionLag("t", 0, 5, 10, 5, "app-1"), PartitionLag("t", 1, None, 4, None, "app-1")]


def test_a_stable_group() -> None:
    assert as_text(GROUP, LAGS, None).splitlines() == [
        "group           readers",
        "state           Stable",
        "generation      3",
        "protocol        range (consumer)",
        "coordinator     127.0.0.1:7337",
        "last rebalance  member app-2 joined",
        "",
        "MEMBER  CLIENT  HOST      ASSIGNMENT",
        "app-1   app     10.0.0.7  t 0-3",
        "app-2   app     10.0.0.7  -",
        "",
        "1 of 2 members owns no partition",
        "",
        "TOPIC  PARTITION  COMMITTED  END  LAG  OWNER",
        "t              0          5   10    5  app-1",
        "t              1          -    4    -  app-1",
        "",
        "total lag 5, unknown for 1 partition",
    ]


def test_the_total_lag_is_that_of_partitions_with_a_committed_offset() -> None:
    def total(*lags: PartitionLag) -> str:
        return as_text(GROUP, lags, None).splitlines()[-1]

    without = [PartitionLag("t", index, None, 4, None, "app-1") for index in range(4)]
    assert total(LAGS[0]) == "total lag 5"
    assert total(PartitionLag("t", 0, 10, 10, 0, "app-1"), *without) == "total lag 0, unknown for 4 partitions"
    assert total(*without) == "total lag unknown for 4 partitions"


def test_static_members_have_a_column_and_own_partitions_by_their_instance_id() -> None:
    group = replace(GROUP, members=(member("app-1", *T, instance="one"), member("app-2", instance="two")))
    text = as_text(group, LAGS, None)
    assert "MEMBER  INSTANCE  CLIENT  HOST      ASSIGNMENT" in text
    assert "app-2   two       app     10.0.0.7  -" in text
    assert text.count("  one") == 3


def test_a_client_id_that_is_one_members_only_stands_for_it() -> None:
    group = replace(GROUP, members=(member("app-1-8f21", *T, client="left"), member("app-2-77aa", client="right")))
    text = as_text(group, [LAGS[0]._replace(member_id="app-1-8f21")], None)
    assert text.count("  left") == 2


def test_a_group_under_way_says_whom_it_waits_for_and_who_is_pending() -> None:
    text = as_text(
        replace(GROUP, state="PreparingRebalance", protocol="", waiting_for=("app-1", "app-2"), pending_members=1),
        [],
        None,
    )
    assert "protocol        consumer" in text
    assert "waiting for     app-1, app-2" in text
    assert "pending         1 member with a new id, not joined yet" in text
    assert "no partition" not in text
    assert text.endswith("no committed offsets")


def test_offsets_that_transactions_have_not_decided_are_counted() -> None:
    assert "undecided       2 offsets of open transactions" in as_text(replace(GROUP, pending_offsets=2), [], None)
    assert "undecided" not in as_text(GROUP, [], None)


def test_an_empty_group_says_since_when() -> None:
    text = as_text(replace(GROUP, state="Empty", members=(), empty_since_ms=1_795_262_400_000), [], None)
    assert "empty since     2026-11-2" in text
    assert "no members" in text


@pytest.mark.parametrize("width", [50, 60, 80])
def test_on_a_narrow_terminal_ids_stay_whole_and_lines_fit(width: int) -> None:
    name = "consumer-9d2f8c1e-5b7a"
    group = replace(
        GROUP, members=(member(name, T[0], client=name), member(name + "-2", client=name)), last_rebalance_reason="?"
    )
    text = as_text(group, [LAGS[0]._replace(member_id=name)], width)
    assert max(map(len, text.splitlines())) <= width
    assert name in text
    assert (f"member      {name}" in text) == (width < 75)


def test_a_long_reason_is_wrapped_where_the_terminal_ends() -> None:
    text = as_text(
        replace(GROUP, last_rebalance_reason="member app-2 joined; member app-3 left: its work is done"), [], 50
    )
    assert "last rebalance  member app-2 joined; member app-3\n                left: its work is done\n" in text


def test_a_table_that_fits_is_left_alone_and_one_that_does_not_is_cut_or_folded() -> None:
    columns, rows = ("name", "size"), [("a-rather-long-name", 7), ("short", None)]
    assert cut_table(columns, rows, 24) == folding_table(columns, rows, None)
    assert cut_table(columns, rows, 18).splitlines() == [
        "NAME          SIZE",
        "a-rath…-name     7",
        "short            -",
    ]
    assert folding_table(columns, rows, 20) == "name  a-rather-long-name\nsize  7\n\nname  short\nsize  -"


def test_partitions_are_told_in_ranges() -> None:
    assert assignment_text([*T, TopicPartition("u", 7)]) == "t 0-3, u 7"
    assert assignment_text([]) == ""


def test_the_json_has_what_the_contract_says_and_more() -> None:
    group = replace(GROUP, members=(member("app-1", T[0], instance="one"), member("app-2")), waiting_for=("app-2",))
    shown: dict[str, Any] = as_object(group, LAGS[:1])
    assert shown == {
        "group": "readers",
        "state": "Stable",
        "generation": 3,
        "protocol_type": "consumer",
        "protocol": "range",
        "coordinator": "127.0.0.1:7337",
        "leader": "app-1",
        "last_rebalance_reason": "member app-2 joined",
        "waiting_for": ["app-2"],
        "pending_members": 0,
        "empty_since_ms": None,
        "pending_offsets": 0,
        "members": [
            {
                "member_id": "app-1",
                "client_id": "app",
                "group_instance_id": "one",
                "host": "10.0.0.7",
                "software": None,
                "topics": ["t"],
                "assignment": [{"topic": "t", "partition": 0}],
            },
            {
                "member_id": "app-2",
                "client_id": "app",
                "group_instance_id": None,
                "host": "10.0.0.7",
                "software": None,
                "topics": ["t"],
                "assignment": [],
            },
        ],
        "members_without_partitions": ["app-2"],
        "offsets": [{"topic": "t", "partition": 0, "committed": 5, "end": 10, "lag": 5, "member_id": "app-1"}],
    }


@pytest.mark.parametrize("software", ["", "aiocohort", "aiocohort 0.9"])
def test_software_is_a_column_where_a_member_runs_something_else(software: str) -> None:
    ours = replace(GROUP, members=tuple(replace(each, software=software) for each in GROUP.members))
    assert as_text(ours, LAGS, None) == as_text(GROUP, LAGS, None)
    first, second = ours.members
    mixed = replace(ours, members=(first, replace(second, software="librdkafka 2.16.0")))
    lines = as_text(mixed, LAGS, None).splitlines()
    assert lines[7].split() == ["MEMBER", "CLIENT", "SOFTWARE", "HOST", "ASSIGNMENT"]
    assert lines[9].split() == ["app-2", "app", "librdkafka", "2.16.0", "10.0.0.7", "-"]
    assert [each["software"] for each in as_object(mixed, LAGS)["members"]] == [software or None, "librdkafka 2.16.0"]


def test_a_plan_shows_notes_only_when_there_are_some() -> None:
    plan = OffsetResetPlan("g", "Empty", (PartitionReset("t", 0, 30, 10), PartitionReset("t", 1, None, 5)))
    assert plan_text(plan, None).splitlines() == [
        "TOPIC  PARTITION  CURRENT  NEW  DIFFERENCE",
        "t              0       30   10         -20",
        "t              1        -    5           -",
    ]
    noted = replace(plan, partitions=(PartitionReset("t", 0, 30, 50, "51 is after the log"),))
    assert plan_text(noted, None).splitlines() == [
        "TOPIC  PARTITION  CURRENT  NEW  DIFFERENCE  NOTE",
        "t              0       30   50          20  51 is after the log",
    ]
    assert plan_text(noted, 50).splitlines()[-2:] == ["difference  20", "note        51 is after the log"]
    assert plan_object(noted) == {
        "group": "g",
        "state": "Empty",
        "executed": False,
        "blocked": None,
        "partitions": [
            {"topic": "t", "partition": 0, "current": 30, "new": 50, "difference": 20, "note": "51 is after the log"}
        ],
    }


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() is None  # pytest reads what is printed
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal_width() == 72
