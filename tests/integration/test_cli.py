"""``cohort`` against a real daemon: what it prints, what it stores, how it ends."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import Producer
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT, arguments, cohort, environment, objects, output


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        yield daemon.address


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_topic_is_created_listed_described_grown_and_deleted(address: str) -> None:
    assert "created with 3 partitions" in output("topics", "create", "life", "--partitions", "3", address=address)
    empty = {"topic": "life", "partitions": 3, "records": 0, "bytes": 0}
    assert empty in objects("topics", "list", address=address)[0]
    assert "life" in output("topics", "list", address=address)
    output("topics", "add-partitions", "life", "5", address=address)
    (described,) = objects("topics", "describe", "life", address=address)
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2, 3, 4]
    assert "5 partitions" in output("topics", "describe", "life", address=address)
    output("topics", "delete", "life", address=address)
    assert "life" not in output("topics", "list", address=address)


def test_a_listing_tells_what_topics_hold_and_a_peek_shows_the_last_records(address: str) -> None:
    output("topics", "create", "seen", "--partitions", "2", address=address)
    output("produce", "seen", "--key-separator", ":", address=address, stdin=b"".join(b"k:%d\n" % n for n in range(8)))
    (row,) = [row for row in objects("topics", "list", address=address)[0] if row["topic"] == "seen"]
    assert (row["partitions"], row["records"]) == (2, 8)
    assert row["bytes"] > 8
    shown = objects("topics", "peek", "seen", "--records", "3", address=address)[0]
    assert [(each["offset"], each["key"], each["value"]) for each in shown] == [
        (5, "k", "5"),
        (6, "k", "6"),
        (7, "k", "7"),
    ]
    assert "k    7" in output("topics", "peek", "seen", address=address)
    microseconds = json.dumps({"value": "late", "partition": 0, "timestamp_ms": 1_700_000_000_000_000}).encode()
    output("produce", "seen", "--json-lines", address=address, stdin=microseconds)
    assert "1700000000000000 ms" in output("topics", "peek", "seen", address=address)  # no calendar has that year
    output("topics", "create", "void", address=address)
    assert output("topics", "peek", "void", address=address) == "topic void has no records\n"


def test_topic_settings_reach_the_daemon(address: str) -> None:
    refused = cohort("topics", "create", "odd", "--config", "no.such.setting=1", address=address)
    assert refused.returncode == 1
    assert "no.such.setting" in refused.stderr


def test_a_topic_is_told_otherwise_and_shows_it(address: str) -> None:
    output("topics", "create", "told", "--config", "retention.ms=5000", address=address)
    altered = output(
        "topics",
        "alter",
        "told",
        "--config",
        "cleanup.policy=compact,delete",
        "--reset",
        "retention.ms",
        address=address,
    )
    assert "cleanup.policy=compact,delete, retention.ms=604800000 now" in altered
    (described,) = objects("topics", "describe", "told", address=address)
    assert described["own_config"] == ["cleanup.policy"]
    assert described["config"]["retention.ms"] == "604800000"
    shown = output("topics", "describe", "told", address=address)
    assert re.search(r"cleanup\.policy +compact,delete +topic", shown)
    assert re.search(r"retention\.ms +604800000 +daemon", shown)
    refused = cohort("topics", "alter", "told", "--config", "cleanup.polcy=compact", address=address)
    assert refused.returncode == 1
    assert "did you mean 'cleanup.policy'?" in refused.stderr
    assert cohort("topics", "alter", "told", address=address).returncode == 1


def test_the_oldest_records_of_a_topic_are_deleted(address: str) -> None:
    output("topics", "create", "short", address=address)
    output("produce", "short", address=address, stdin=b"one\ntwo\nthree\n")
    assert objects("topics", "delete-records", "short", "--before", "2", address=address)[0] == [
        {"partition": 0, "start": 2}
    ]
    read = ("consume", "short", "--from-beginning", "--max-messages", "1", "--timeout", "10")
    assert output(*read, address=address) == "three\n"
    output("topics", "delete-records", "short", "--all", "--partition", "0", address=address)
    (described,) = objects("topics", "describe", "short", address=address)
    (partition,) = described["partitions"]
    assert (partition["start"], partition["end"], partition["fault"]) == (3, 3, "")
    for wrong in (("--before", "-1"), ("--before", "1", "--all"), ()):
        assert cohort("topics", "delete-records", "short", *wrong, address=address).returncode == 2
    refused = cohort("topics", "delete-records", "short", "--before", "9", address=address)
    assert refused.returncode == 1
    assert "short-0 ends at offset 3, so nothing was deleted below 9" in refused.stderr


def test_records_are_deleted_where_they_can_be_and_the_rest_is_named(address: str) -> None:
    output("topics", "create", "uneven", "--partitions", "3", address=address)
    output(
        "produce", "uneven", "--key-separator", ":", address=address, stdin=b"k:1\nk:2\nk:3\n"
    )  # one key, one partition
    refused = cohort("topics", "delete-records", "uneven", "--before", "2", address=address)
    assert refused.returncode == 1
    assert re.fullmatch(r"PARTITION +START\n +\d +2\n", refused.stdout)
    assert "nothing was deleted in 2 of 3 partitions" in refused.stderr
    assert refused.stderr.count("ends at offset 0") == 2
    (described,) = objects("topics", "describe", "uneven", address=address)
    assert sorted(partition["start"] for partition in described["partitions"]) == [0, 0, 2]


def test_a_topic_that_does_not_exist_is_said_to(address: str) -> None:
    for command in (("describe", "nix"), ("delete-records", "nix", "--all"), ("alter", "nix", "--reset", "segment.ms")):
        refused = cohort("topics", *command, address=address)
        assert (refused.returncode, refused.stderr) == (
            1, "cohort: UNKNOWN_TOPIC_OR_PARTITION: topic 'nix' does not exist\n",
        )  # fmt: skip


def test_lines_of_a_file_come_back_in_order(address: str, tmp_path: Path) -> None:
    lines = ["first", "", "  with blanks  ", "zuletzt: ÄÖÜ", "no line feed at the end"]
    source = tmp_path / "lines.txt"
    source.write_text("\n".join(lines), encoding="utf-8")
    output("topics", "create", "file", address=address)
    assert "5 records acknowledged" in output("produce", "file", str(source), address=address)
    read = output("consume", "file", "--from-beginning", "--max-messages", "5", "--timeout", "10", address=address)
    assert read.split("\n") == [*lines, ""]


def test_standard_input_of_many_pieces_is_produced_whole(address: str) -> None:
    count = 30_000
    content = b"".join(b"%d %s\n" % (number, b"x" * 60) for number in range(count))
    output("topics", "create", "stdin", address=address)
    (report,) = json_lines(output("produce", "stdin", "--json", address=address, stdin=content))
    assert report == {"topic": "stdin", "acknowledged": count, "complete": True}
    read = output("consume", "stdin", "--from-beginning", "--max-messages", str(count), address=address)
    assert read.encode() == content


def json_lines(text: str) -> list[object]:
    return [json.loads(line) for line in text.splitlines()]


def test_keys_stand_before_the_separator_and_json_shows_every_field(address: str) -> None:
    output("topics", "create", "keyed", "--partitions", "4", address=address)
    output("produce", "keyed", "--key-separator", "::", address=address, stdin=b"a::1\nb::2::3\na::\n")
    records = objects("consume", "keyed", "--from-beginning", "--max-messages", "3", address=address)
    assert sorted((each["key"], each["value"]) for each in records) == [("a", ""), ("a", "1"), ("b", "2::3")]
    assert set(records[0]) == {"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"}
    assert len({each["partition"] for each in records if each["key"] == "a"}) == 1


def test_a_line_without_the_separator_ends_it_after_what_came_before(address: str) -> None:
    output("topics", "create", "unkeyed", address=address)
    done = cohort("produce", "unkeyed", "--key-separator", ":", address=address, stdin=b"a:1\nnothing\n")
    assert done.returncode == 1
    assert "line 2 has no separator ':'" in done.stderr
    assert "0 records acknowledged" in done.stdout


async def test_bytes_that_are_no_text_are_shown_as_base64(address: str) -> None:
    output("topics", "create", "binary", address=address)
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send_and_wait("binary", b"\xff\x00", key=None, headers=[("trace", b"\xfe"), ("kind", b"raw")])
    (record,) = objects("consume", "binary", "--from-beginning", "--max-messages", "1", address=address)
    assert record["key"] is None
    assert (record["value"], record["value_encoding"]) == (base64.b64encode(b"\xff\x00").decode(), "base64")
    assert record["headers"] == [
        {"name": "trace", "value": base64.b64encode(b"\xfe").decode(), "value_encoding": "base64"},
        {"name": "kind", "value": "raw"},
    ]


def test_a_group_goes_on_where_it_stopped_and_is_described(address: str) -> None:
    output("topics", "create", "grouped", address=address)
    output("produce", "grouped", address=address, stdin=b"".join(b"%d\n" % number for number in range(10)))
    read = ["consume", "grouped", "--group", "readers", "--from-beginning", "--max-messages"]
    assert output(*read, "4", address=address).split() == ["0", "1", "2", "3"]
    assert output(*read, "3", address=address).split() == ["4", "5", "6"]
    (described,) = objects("groups", "describe", "readers", address=address)
    assert set(described) >= {
        *("group", "state", "generation", "protocol", "coordinator", "last_rebalance_reason", "members", "offsets")
    }
    assert (described["group"], described["state"], described["members"]) == ("readers", "Empty", [])
    assert described["coordinator"] == address
    assert described["offsets"] == [
        {"topic": "grouped", "partition": 0, "committed": 7, "end": 10, "lag": 3, "member_id": None}
    ]
    assert {"group": "readers", "protocol_type": "consumer", "state": "Empty"} in objects(
        "groups", "list", address=address
    )[0]
    assert "total lag 3" in output("groups", "describe", "readers", address=address)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_makes_a_consumer_leave_its_group(address: str, number: signal.Signals) -> None:
    topic, group = f"left-{number.name}", f"leavers-{number.name}"
    output("topics", "create", topic, address=address)
    output("produce", topic, address=address, stdin=b"one\ntwo\n")
    with subprocess.Popen(
        arguments("consume", topic, "--group", group, "--from-beginning", address=address),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    ) as consuming:
        assert consuming.stdout is not None
        assert [consuming.stdout.readline(), consuming.stdout.readline()] == [b"one\n", b"two\n"]
        (described,) = objects("groups", "describe", group, address=address)
        (member,) = described["members"]
        assert set(member) >= {"member_id", "client_id", "group_instance_id", "host", "assignment"}
        assert member["assignment"] == [{"topic": topic, "partition": 0}]
        assert described["offsets"][0]["member_id"] == member["member_id"]
        text = output("groups", "describe", group, address=address)
        assert "Stable" in text
        assert "joined" in text
        consuming.send_signal(number)
        assert consuming.wait(20) == 0
    (described,) = objects("groups", "describe", group, address=address)
    assert (described["state"], described["offsets"][0]["committed"]) == ("Empty", 2)


def test_an_interrupted_producer_says_what_was_acknowledged(address: str) -> None:
    output("topics", "create", "interrupted", address=address)
    with subprocess.Popen(
        arguments("produce", "interrupted", "--json", address=address),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    ) as producing:
        assert producing.stdin is not None
        producing.stdin.write(b"one\ntwo\nhalf a li")
        producing.stdin.flush()
        deadline = time.monotonic() + 20
        while "two" not in output("consume", "interrupted", "--from-beginning", "--timeout", "1", address=address):
            assert time.monotonic() < deadline
        producing.send_signal(signal.SIGINT)
        stdout, stderr = producing.stdout, producing.stderr
        assert stdout is not None
        assert stderr is not None
        assert producing.wait(20) == 1
        assert json.loads(stdout.read()) == {"topic": "interrupted", "acknowledged": 2, "complete": False}
        assert b"interrupted by SIGINT" in stderr.read()


def test_a_reader_that_has_enough_is_no_error(address: str) -> None:
    output("topics", "create", "piped", address=address)
    output("produce", "piped", address=address, stdin=b"line\n" * 50_000)
    read, write = os.pipe()
    with subprocess.Popen(
        arguments("consume", "piped", "--from-beginning", address=address),
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(),
    ) as consuming:
        os.close(write)
        assert os.read(read, 5) == b"line\n"
        os.close(read)
        assert consuming.wait(20) == 0
        assert consuming.stderr is not None
        assert consuming.stderr.read() == b""


def test_consuming_ends_when_nothing_comes(address: str) -> None:
    output("topics", "create", "silent", address=address)
    assert output("consume", "silent", "--timeout", "0.5", address=address) == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["topics", "describe", "nowhere"], "nowhere"),
        (["topics", "delete", "nowhere"], "nowhere"),
        (["topics", "create", "no/such/name"], "no/such/name"),
        (["consume", "nowhere"], "nowhere"),
        (["produce", "nowhere", "no-such-file"], "no-such-file"),
        (["produce", "nowhere", str(ROOT)], "is a directory"),
        (["groups", "describe", "nobody"], "group 'nobody' does not exist"),
    ],
)
def test_failures_say_why_in_one_line_and_exit_1(address: str, words: list[str], reason: str) -> None:
    done = cohort(*words, address=address)
    assert done.returncode == 1
    assert done.stderr.startswith("cohort: ")
    assert reason in done.stderr.splitlines()[0]


def test_no_daemon_names_the_address_and_how_to_start_one() -> None:
    nobody = f"127.0.0.1:{unused_port()}"
    done = cohort("topics", "list", address=nobody)
    assert done.returncode == 1
    assert nobody in done.stderr
    assert "refused" in done.stderr
    assert "cohortd" in done.stderr


def test_the_address_can_come_from_the_environment(address: str) -> None:
    assert cohort("topics", "list", env={"COHORT_BOOTSTRAP": address}).returncode == 0
    wrong = cohort("topics", "list", env={"COHORT_BOOTSTRAP": "non sense"})
    assert wrong.returncode == 2
    assert "COHORT_BOOTSTRAP" in wrong.stderr
