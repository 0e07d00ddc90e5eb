"""The arguments of ``cohort transactions``, and how transactions look to people and programs."""

from __future__ import annotations

import pytest

from client.cli.held_back import held_back_text
from client.cli.main import build_parser, main
from client.cli.output import age_text
from client.cli.transactions import as_object, as_text
from client.types.descriptions import TransactionDescription, TransactionMemberDescription
from client.types.records import TopicPartition

OPEN = TransactionDescription(
    transactional_id="billing",
    state="Ongoing",
    coordinator="127.0.0.1:7337",
    producer_id=5,
    producer_epoch=3,
    timeout_ms=60_000,
    started_ms=1_000,
    members=(
        TransactionMemberDescription(5, "", 1_000, (TopicPartition("orders", 0), TopicPartition("orders", 1))),
        TransactionMemberDescription(9, "task-1", 31_000, ()),
    ),
    committed_version=3,
    version=4,
    scope="query-1",
    previous_outcome="committed",
    waits_for=("orders-1: no room on the disk", "orders-2: is not open"),
)
EMPTY = TransactionDescription("idle", "Empty", "h:1", 6, 0, 500, None, (), None, None, "", "", ())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["transactions", "list", "--state", "ongoin"],
            "'ongoin' is no state; there are Empty, Ongoing, PrepareCommit",
        ),
        (
            ["transactions", "list", "--older-than", "60"],
            "'60' is no length of time, such as 500ms, 60s, 5m, 2h, 1d or PT2H",
        ),
        (["transactions", "list", "--older-than", "-5s"], "expected one argument"),
        (["transactions", "describe"], "ID"),
        (["transactions", "abort"], "ID"),
        (["transactions", "hanging", "billing"], "billing is one argument too many"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(("text", "ms"), [("500ms", 500), ("60s", 60_000), ("5m", 300_000), ("1d", 86_400_000)])
def test_a_length_of_time_has_a_unit(text: str, ms: int) -> None:
    assert build_parser().parse_command(["transactions", "list", "--older-than", text]).older_than == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0 s"),
        (999, "0 s"),
        (42_000, "42 s"),
        (185_000, "3 min 5 s"),
        (3_600_000, "1 h 0 min"),
        (7_445_000, "2 h 4 min"),
        (263_000_000, "3 d 1 h"),
    ],
)
def test_an_age_is_told_in_its_two_largest_units(ms: int, text: str) -> None:
    assert age_text(ms) == text


def test_a_transaction_shows_who_writes_where_and_what_it_waits_for() -> None:
    assert as_text(OPEN, 62_000, None).splitlines() == [
        "transactional id    billing",
        "state               Ongoing",
        "coordinator         127.0.0.1:7337",
        "producer            id 5, epoch 3",
        "open for            1 min 1 s of at most 1 min 0 s",
        "last transaction    committed",
        "version             4",
        "committed version   3",
        "scope               query-1",
        "waits for           orders-1: no room on the disk",
        "waits for           orders-2: is not open",
        "",
        "PRODUCER ID  NAME    OPEN FOR   PARTITIONS",
        "          5  -       1 min 1 s  orders 0-1",
        "          9  task-1  31 s       -",
    ]
    assert as_text(EMPTY, 62_000, None).splitlines()[-2:] == ["open for            -", "last transaction    -"]


def test_what_is_folded_keeps_ids_whole() -> None:
    for line in as_text(OPEN, 62_000, 40).splitlines():
        assert len(line) <= 40


def test_a_program_gets_everything() -> None:
    shown = as_object(OPEN)
    assert shown.keys() == {field for field in OPEN.__slots__ if field}
    assert shown["members"][0] == {
        "producer_id": 5,
        "name": "",
        "started_ms": 1_000,
        "partitions": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 1}],
    }
    assert as_object(EMPTY)["previous_outcome"] is None


def test_a_partition_says_for_whom_its_readers_wait() -> None:
    oldest = {"transactional_id": "billing", "producer_id": 5, "producer_epoch": 3, "start_offset": 17}
    assert held_back_text([oldest]) == (
        "read_committed waits at offset 17 for the transaction of transactional id billing (producer id 5, epoch 3)"
    )
    unknown = {**oldest, "transactional_id": None}
    assert held_back_text([unknown, oldest]) == (
        "read_committed waits at offset 17 for the transaction of producer id 5, epoch 3; open are 2 transactions"
    )
