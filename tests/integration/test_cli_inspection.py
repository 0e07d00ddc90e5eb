"""``cohort log dump`` on what a daemon has written, as people run it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import Consumer, Producer
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT, arguments, cohort, environment, objects, output

SEGMENT = "00000000000000000000.log"


async def use(address: str) -> None:
    """A committed transaction, an aborted one, and a group that commits an offset."""
    async with Producer(bootstrap_servers=address, transactional_id="payments") as producer:
        async with producer.transaction():
            await producer.send("lines", b"first", key=b"k", partition=0)
        try:
            async with producer.transaction():
                await (await producer.send("lines", b"aborted", partition=0))
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    async with Consumer(
        "lines", bootstrap_servers=address, group_id="readers", auto_offset_reset="earliest"
    ) as consumer:
        async for _ in consumer:
            await consumer.commit()
            return


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a daemon that runs."""
    root = tmp_path_factory.mktemp("daemon") / "data"
    with DaemonProcess(root) as daemon:
        output("topics", "create", "lines", "--partitions", "2", address=daemon.address)
        asyncio.run(use(daemon.address))
        yield root


def dumped(*words: str) -> str:
    done = cohort("log", "dump", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_records_and_end_markers_are_shown(data: Path) -> None:
    text = dumped(str(data / "lines-0" / SEGMENT), "--values")
    assert 'key "k"  value "first"' in text
    assert "is committed" in text
    assert "is aborted" in text
    assert "value" not in dumped(str(data / "lines-0" / SEGMENT))
    (record,) = [
        each
        for each in objects("log", "dump", str(data / "lines-0" / SEGMENT), "--values", "--from", "0", "--until", "1")
        if each["kind"] == "record"
    ]
    assert (record["key"], record["value"]) == ("k", "first")


def test_groups_and_transactions_are_told_in_words(data: Path) -> None:
    (offsets,) = data.glob("__consumer_offsets-*")
    text = dumped(str(offsets / SEGMENT))
    assert re.search(r"group readers committed offset \d of lines-0 at \d{4}-", text)
    assert "group readers: generation 1 of 1 member, consumer range, leader " in text
    assert "lines 0,1\n" in text
    (transactions,) = data.glob("__transaction_state-*")
    text = dumped(str(transactions / SEGMENT))
    assert "transactional id payments: producer " in text
    assert "writes in the transaction of producer " in text


def test_what_does_not_go_is_said_in_one_line_and_the_rest_is_shown(data: Path, tmp_path: Path) -> None:
    rubbish = tmp_path / "picture.png"
    rubbish.write_bytes(b"\x89PNG\r\n")
    done = cohort("log", "dump", str(rubbish), str(tmp_path / "none.log"), str(data / "lines-0" / SEGMENT), "--json")
    assert done.returncode == 1
    assert [json.loads(line)["kind"] for line in done.stdout.splitlines()][-1] == "segment"
    first, second = done.stderr.splitlines()
    assert first.startswith("cohort: ")
    assert "and neither that nor its name is of a file of a partition's log" in first
    assert "none.log" in second


def test_a_reader_that_has_enough_is_no_fault(data: Path) -> None:
    words = arguments("log", "dump", *[str(data / "lines-0" / SEGMENT)] * 300, "--values")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment()
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 0
