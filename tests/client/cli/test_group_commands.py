"""The arguments of ``cohort groups``: what they mean, and what is wrong usage."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from client.cli.group_offsets import topic_partitions
from client.cli.main import build_parser, main
from client.types.records import TopicPartition

RESET = ["groups", "reset-offsets", "g"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("t", ["t"]),
        ("t:3", [TopicPartition("t", 3)]),
        ("t:0,2-4", [TopicPartition("t", index) for index in (0, 2, 3, 4)]),
    ],
)
def test_a_topic_may_name_partitions(text: str, meant: list[object]) -> None:
    assert topic_partitions(text) == meant


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["groups", "list", "--state", "Stabel"], "'Stabel' is no state; there are Empty, PreparingRebalance"),
        (["groups", "delete"], "GROUP"),
        (["groups", "remove-member", "g"], "MEMBER"),
        (["groups", "remove-member", "g", "m", "--all"], "not allowed with"),
        (["groups", "delete-offsets", "g"], "--topic"),
        ([*RESET, "--to-earliest"], "--topic"),
        ([*RESET, "--topic", "t"], "--to-earliest"),
        ([*RESET, "--topic", "t", "--all-topics", "--to-latest"], "not allowed with"),
        ([*RESET, "--topic", "t", "--to-latest", "--shift-by", "1"], "not allowed with"),
        ([*RESET, "--topic", "t", "--to-latest", "--to-earliest"], "not allowed with"),
        ([*RESET, "--topic", "t", "--to-offset", "-1"], "--to-offset"),
        ([*RESET, "--topic", "t", "--to-offset", "x"], "'x' is no offset"),
        ([*RESET, "--topic", "t", "--to-offset", str(2**63)], "is no offset"),
        ([*RESET, "--topic", "t", "--shift-by", "few"], "'few' is not a whole number of records"),
        ([*RESET, "--topic", "t", "--to-datetime", "yesterday"], "'yesterday' is no ISO 8601 time, such as 2026-11-21"),
        ([*RESET, "--topic", ":1", "--to-latest"], "names no topic"),
        ([*RESET, "--topic", "t:", "--to-latest"], "'' is no partition"),
        ([*RESET, "--topic", "t:1,,2", "--to-latest"], "'' is no partition"),
        ([*RESET, "--topic", "t:x", "--to-latest"], "'x' is no partition"),
        ([*RESET, "--topic", "t:3-1", "--to-latest"], "'3-1' is no range of partitions"),
        ([*RESET, "--topic", "t:0-99999999", "--to-latest"], "is no range of partitions"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_negative_shift_is_a_number_not_an_option() -> None:
    assert build_parser().parse_args([*RESET, "--topic", "t", "--shift-by", "-100"]).shift_by == -100


@pytest.mark.parametrize("text", ["2026-11-21", "2026-11-21T08:00:00", "2026-11-21 08:00:00.5"])
def test_a_time_without_an_offset_from_utc_is_local(text: str) -> None:
    to = build_parser().parse_args([*RESET, "--topic", "t", "--to-datetime", text]).to
    assert to == datetime.fromisoformat(text).astimezone()
    assert to.tzinfo is not None


def test_a_time_may_say_its_offset_from_utc() -> None:
    parsed = [
        build_parser().parse_args([*RESET, "--topic", "t", "--to-datetime", f"2026-11-21T08:00:00{zone}"]).to
        for zone in ("Z", "+05:30")
    ]
    assert parsed[0] - parsed[1] == timedelta(hours=5, minutes=30)


@pytest.mark.parametrize(
    ("given", "meant"), [("stable", "Stable"), ("EMPTY", "Empty"), ("preparingRebalance", "PreparingRebalance")]
)
def test_states_may_be_written_in_any_case(given: str, meant: str) -> None:
    assert build_parser().parse_args(["groups", "list", "--state", given]).state == [meant]
