"""``cohort consume`` and ``produce``: from where to where, in which form."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from client import Producer
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import cohort, objects, output


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def address(daemon: DaemonProcess) -> str:
    return daemon.address


@pytest.fixture(scope="module")
def numbers(address: str) -> str:
    """A topic of three partitions: 0 to 9 in the first one, a second apart from 1,000 s on; a to e in the second."""

    async def fill() -> None:
        async with Producer(bootstrap_servers=address) as producer:
            times = [1_000_000 + 1000 * number for number in range(10)]
            await producer.send_many("numbers", [b"%d" % n for n in range(10)], partition=0, timestamp_ms=times)
            await producer.send_many("numbers", list(map(str.encode, "abcde")), partition=1, timestamp_ms=2_000_000)

    output("topics", "create", "numbers", "--partitions", "3", address=address)
    asyncio.run(fill())
    return "numbers"


def read(address: str, topic: str, *words: str) -> list[str]:
    return output("consume", topic, *words, address=address).splitlines()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("--partition", "0", "--offset", "beginning"), "0123456789"),
        (("--partition", "0", "--offset", "7"), "789"),
        (("--partition", "0", "--offset", "-2"), "89"),
        (("--partition", "0", "--offset", "-99"), "0123456789"),
        (("--partition", "0", "--offset", "end"), ""),
        (("--partition", "0"), ""),
        (("--partition", "1-2", "--from-beginning"), "abcde"),
        (("--partition", "0,1", "--offset", "3"), "3456789de"),
        (("--partition", "0", "--from-time", "1970-01-01T00:16:45.500Z"), "6789"),
        (("--from-time", "1970-01-01T00:20:00Z"), "abcde"),
        (("--from-time", "1h"), ""),
        (("--partition", "0", "--offset", "8", "--max-messages", "1"), "8"),
    ],
)
def test_reading_begins_where_it_is_told_and_stops_at_the_end(
    words: tuple[str, ...], values: str, address: str, numbers: str
) -> None:
    assert sorted(read(address, numbers, *words, "--until-end")) == sorted(values)


def test_reading_stops_before_a_time(address: str, numbers: str) -> None:
    words = ("--offset", "beginning", "--until-time", "1970-01-01T00:16:43Z")
    assert read(address, numbers, *words) == ["0", "1", "2"]


def test_reading_stops_at_the_end_also_behind_transactions(address: str) -> None:
    """Their end markers have offsets, and no record comes from there."""
    output("topics", "create", "paid", address=address)
    output("produce", "paid", "--transactional-id", "cli", address=address, stdin=b"one\ntwo\n")
    assert read(address, "paid", "--offset", "beginning", "--until-end") == ["one", "two"]


def test_a_group_decides_by_itself_where_it_reads(address: str, numbers: str) -> None:
    refused = cohort("consume", numbers, "--group", "g", "--offset", "3", address=address)
    assert refused.returncode == 2
    assert "reset-offsets" in refused.stderr
    assert cohort("consume", numbers, "--from-beginning", "--offset", "3", address=address).returncode == 2


def test_a_partition_that_is_not_there_is_named(address: str, numbers: str) -> None:
    refused = cohort("consume", numbers, "--partition", "0,7", address=address)
    assert (refused.returncode, refused.stderr) == (1, "cohort: topic 'numbers' has no partition 7, but 0 to 2\n")


def test_a_format_prints_what_is_wanted(address: str, numbers: str) -> None:
    words = ("--partition", "0", "--offset", "9", "--until-end", "--format", "%t %p %o %T %k %v %h\\n")
    assert read(address, numbers, *words) == ["numbers 0 9 1009000  9 "]


def test_keys_headers_partition_and_compression_reach_the_log(daemon: DaemonProcess, address: str) -> None:
    output("topics", "create", "rich", "--partitions", "2", address=address)
    words = ("--header", "source=crm", "--header", "empty=", "--partition", "1", "--compression", "gzip")
    output("produce", "rich", "--key-separator", ":", *words, address=address, stdin=b"a:1\nb:2\n")
    records = objects("consume", "rich", "--offset", "beginning", "--until-end", address=address)
    assert [(each["partition"], each["key"], each["value"]) for each in records] == [(1, "a", "1"), (1, "b", "2")]
    headers = [{"name": "source", "value": "crm"}, {"name": "empty", "value": ""}]
    assert [each["headers"] for each in records] == [headers, headers]
    (segment,) = (daemon.data_dir / "rich-1").glob("*.log")
    batches = [each for each in objects("log", "dump", str(segment)) if "compression" in each]
    assert [each["compression"] for each in batches] == ["gzip"]
    refused = cohort("produce", "rich", "--partition", "2", address=address, stdin=b"x\n")
    assert refused.returncode == 1
    assert "2" in refused.stderr


def test_what_consume_prints_as_json_produce_takes(address: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    given = [
        {"key": "a", "value": "1", "partition": 1, "timestamp_ms": 1234},
        {"value": "//79", "value_encoding": "base64", "partition": 0, "headers": [{"name": "h", "value": None}]},
        {"key": None, "value": None, "partition": 1},
    ]
    for topic in ("first", "second"):
        output("topics", "create", topic, "--partitions", "2", address=address)
    lines = "".join(json.dumps(each) + "\n" for each in given).encode()
    assert "3 records" in output("produce", "first", "--json-lines", address=address, stdin=lines)
    whole = ("--offset", "beginning", "--until-end")
    copied = "".join(json.dumps(each) + "\n" for each in objects("consume", "first", *whole, address=address))
    output("produce", "second", "--json-lines", address=address, stdin=copied.encode())
    first, second = (
        sorted(objects("consume", topic, *whole, address=address), key=lambda each: (each["partition"], each["offset"]))
        for topic in ("first", "second")
    )
    assert [{**each, "topic": "first"} for each in second] == first
    assert [(each["partition"], each["value"]) for each in first] == [(0, "//79"), (1, "1"), (1, None)]
    assert first[1]["timestamp_ms"] == 1234
    assert first[0]["timestamp_ms"] >= before_ms


def test_a_line_that_is_no_json_is_named_and_what_came_before_it_is_kept(address: str) -> None:
    output("topics", "create", "broken", address=address)
    refused = cohort("produce", "broken", "--json-lines", address=address, stdin=b'{"value": "a"}\nnonsense\n')
    assert refused.returncode == 1
    assert "line 2 is no JSON" in refused.stderr
