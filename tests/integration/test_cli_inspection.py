"""``cohort log dump`` and ``cohort check`` on what a daemon has written, as people run it."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from client import Admin, Consumer, Producer
from client.cli.cluster_processes import ClusterProcess
from coordinator.filesystem.files import ReadOnlyStorage
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


def test_every_file_of_a_data_directory_is_told(data: Path) -> None:
    files = [path for path in sorted(data.rglob("*")) if path.is_file()]
    assert {"metadata.json", "metadata.changes", "node.json", "lock", "reserve"} <= {path.name for path in files}
    text = dumped(*map(str, files))
    assert re.search(
        r"^  lines-1 is led by node 0 in leader epoch 0, replicas 0, in sync 0  \(revision \d+\)$", text, re.M
    )
    assert re.search(r"^node 0 of the cluster \S+, data directory \S+; it was ", text, re.M)


def test_what_does_not_go_is_said_in_one_line_and_the_rest_is_shown(data: Path, tmp_path: Path) -> None:
    rubbish = tmp_path / "picture.png"
    rubbish.write_bytes(b"\x89PNG\r\n")
    done = cohort("log", "dump", str(rubbish), str(tmp_path / "none.log"), str(data / "lines-0" / SEGMENT), "--json")
    assert done.returncode == 1
    assert [json.loads(line)["kind"] for line in done.stdout.splitlines()][-1] == "segment"
    first, second = done.stderr.splitlines()
    assert first.startswith("cohort: ")
    assert "and neither that nor its name is of a file of a data directory" in first
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


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a daemon that was stopped."""
    root = tmp_path_factory.mktemp("stopped") / "data"
    with DaemonProcess(root, "--segment-bytes", "20000") as daemon:
        output("topics", "create", "lines", "--partitions", "2", address=daemon.address)
        asyncio.run(use(daemon.address))
        asyncio.run(write(daemon.address, 60))
        assert daemon.terminate() == 0
    return root


async def write(address: str, batches: int) -> None:
    async with Producer(bootstrap_servers=address) as producer:
        for number in range(batches):
            await producer.send("lines", b"%d" % number * 1000, partition=1)
            await producer.flush()


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, to be hurt."""
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def checked(root: Path, *words: str, status: int = 0) -> str:
    done = cohort("check", str(root), *words)
    assert (done.returncode, done.stderr) == (status, ""), done.stdout + done.stderr
    return done.stdout


def refused(*words: str) -> str:
    """Why a check does not begin."""
    done = cohort("check", *words)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_a_directory_that_was_stopped_cleanly_is_whole(stopped: Path) -> None:
    (line,) = checked(stopped, "--records").splitlines()
    assert line.startswith(f"{stopped}: 4 partitions, ")
    assert line.endswith(": nothing is damaged")
    (verdict,) = map(json.loads, checked(stopped, "lines-1", "--json").splitlines())
    assert (verdict["partitions"], verdict["records"], verdict["damaged"]) == (1, 60, 0)


def test_a_flipped_bit_is_told_with_its_place_and_what_to_do(copy: Path) -> None:
    segments = sorted((copy / "lines-1").glob("*.log"))
    assert len(segments) > 2
    content = bytearray(segments[1].read_bytes())
    content[5000] ^= 16
    segments[1].write_bytes(content)
    first, advice, verdict = checked(copy, status=1).splitlines()
    assert first.startswith(f"damaged: lines-1/{segments[1].name}, position ")
    assert "its body is damaged" in first
    assert advice.startswith("    what to do: ")
    assert verdict.endswith(": 1 thing is damaged, in 1 partition")
    finding, _ = map(json.loads, checked(copy, "--json", status=1).splitlines())
    assert (finding["kind"], finding["directory"], finding["file"]) == ("damage", "lines-1", segments[1].name)
    assert finding["position"] <= 5000
    checked(copy, "lines-0")


@pytest.mark.parametrize("name", ["metadata.json", "node.json"])
def test_a_flipped_bit_in_the_metadata_is_told(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    assert f"damaged: {name}: {name} is damaged: " in checked(copy, status=1)


def test_logs_that_are_missing_or_belong_to_no_topic_are_told(copy: Path) -> None:
    (copy / "lines-0").rename(copy / "stray-0")
    (next((copy / "stray-0").glob("*.topic-id"))).rename(copy / "stray-0" / ("0" * 32 + ".topic-id"))
    (copy / "lines-0.deleted").mkdir()
    (copy / "notes.txt").write_text("mine")
    (copy / "metadata.changes").write_bytes(b"0000")
    text = checked(copy, status=1)
    assert "damaged: lines-0: it should be here, and is not" in text
    assert "note: stray-0: nothing says that this log belongs to the node" in text
    assert "note: lines-0.deleted: it was being removed when the daemon ended" in text
    assert "note: notes.txt: no file of Cohort has this name" in text
    assert "note: metadata.changes, position 0: its last line was being written" in text
    assert text.splitlines()[-1].endswith(": 1 thing is damaged, in 1 partition; 4 notes")


def test_other_directories_are_refused(stopped: Path, tmp_path: Path) -> None:
    assert "it is empty" in refused(str(tmp_path))
    (tmp_path / "a-1").mkdir()
    (tmp_path / "b.txt").touch()
    assert "is no data directory of Cohort: it has a-1 and 1 more" in refused(str(tmp_path))
    assert "is no directory that can be read" in refused(str(tmp_path / "none"))
    assert "is no directory that can be read" in refused(str(tmp_path / "b.txt"))
    assert "is the directory of a partition: give the data directory above it" in refused(str(stopped / "lines-0"))
    assert "has no partition lines-7: give names such as lines-0" in refused(str(stopped), "lines-7")


def test_a_daemon_and_a_check_keep_out_of_each_others_way(copy: Path) -> None:
    with DaemonProcess(copy) as daemon:
        told = refused(str(copy))
        assert f"{copy} is used by process {daemon.pid}, and what is being written looks damaged: " in told
        daemon.terminate()
    lock = ReadOnlyStorage(copy).lock("lock")
    checked(copy)  # several may look at the same time
    try:
        with pytest.raises(AssertionError, match="is locked by a program that reads all of it, such as cohort check"):
            DaemonProcess(copy).start()
    finally:
        lock.release()
    with DaemonProcess(copy):
        pass


@pytest.mark.timeout(400)  # a few commands, each a Python of its own, beside a daemon that is kept busy
def test_a_directory_in_use_is_looked_at_on_request_without_false_alarms(copy: Path) -> None:
    """While records are written, segments rolled and deleted, and topics made and removed."""
    with DaemonProcess(copy, "--segment-bytes", "5000") as daemon:
        done = False

        async def busy() -> None:
            async with Admin(bootstrap_servers=daemon.address) as admin:
                number = 0
                while not done:
                    number += 1
                    await admin.create_topics({f"short-lived-{number}": 2})
                    await write(daemon.address, 20)
                    await admin.delete_topics(f"short-lived-{number}")
                    await asyncio.sleep(0.05)

        working = threading.Thread(target=asyncio.run, args=(busy(),))
        working.start()
        try:
            for _ in range(3):
                checked(copy, "--running")
        finally:
            done = True
            working.join(60)
        path = min((copy / "lines-1").glob("*.log"))
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert f"damaged: lines-1/{path.name}" in checked(copy, "--running", status=1)


def test_all_workers_of_a_daemon_are_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with DaemonProcess(root, "--workers", "2", "--node-session-ms", "2000") as daemon:
        output("topics", "create", "lines", "--partitions", "2", address=daemon.address)
        asyncio.run(write(daemon.address, 10))
        assert f"{root} is used by process " in refused(str(root))
        checked(root, "--running")
        assert daemon.terminate() == 0
    (line,) = checked(root).splitlines()
    both = [*root.glob("*-*/*.log"), *root.glob("workers/1/*-*/*.log")]
    assert f" partitions, {len(both)} segments of " in line
    assert list(root.glob("workers/1/lines-*"))
    path = next(root.glob("workers/1/lines-*/*.topic-id")).parent / "leader-epochs"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert f"damaged: workers/1/{path.parent.name}/leader-epochs: " in checked(root, status=1)
    assert f"damaged: workers/1/{path.parent.name}/" in checked(root, path.parent.name, status=1)


def test_a_node_of_a_cluster_is_known_by_its_inventory(tmp_path: Path) -> None:
    async def serve() -> None:
        async with ClusterProcess(tmp_path, 2) as cluster:
            async with Admin(bootstrap_servers=cluster.address) as admin:
                await admin.create_topics({"lines": 1}, replication_factor=2)
            async with Producer(bootstrap_servers=cluster.address) as producer:
                await (await producer.send("lines", b"x"))

    asyncio.run(serve())
    roots = sorted(path for path in tmp_path.iterdir() if (path / "inventory").exists())
    assert len(roots) == 2
    for root in roots:
        checked(root, "--records")
        text = dumped(str(root / "inventory"), str(root / "high-watermarks"), str(root / "node.json"))
        assert re.search(r"^\d+ logs? in this data directory$", text, re.M)
        assert re.search(r"^  partition 0 of the topic with the id \w{32}: [01]; it had all", text, re.M)
    shutil.rmtree(roots[1] / "lines-0")
    assert "damaged: partition 0 of the topic with the id " in checked(roots[1], status=1)
    for name in ("inventory", "high-watermarks"):
        path = roots[0] / name
        path.write_bytes(path.read_bytes().replace(b'"', b"'", 1).replace(b"1 ", b"2 ", 1))
        assert f"damaged: {name}: {name} is damaged" in checked(roots[0], status=1)


def test_the_memory_of_a_check_is_bounded_and_a_terminal_sees_how_far_it_is(copy: Path) -> None:
    """A segment of 2 GiB, most of which is a hole."""
    with open(copy / "lines-0" / SEGMENT, "r+b") as file:
        file.truncate(2 * 2**30)
    primary, secondary = pty.openpty()
    # What wait4 tells would count the memory of the process that it was forked from, which is this one's.
    told = "print(open('/proc/self/status').read())"
    check = f"import sys; from coordinator.inspection.__main__ import main; status = main(); {told}; sys.exit(status)"
    program = [sys.executable, "-c", check, "check", str(copy)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=secondary, cwd=ROOT, text=True) as process:
        os.close(secondary)
        assert process.stdout is not None
        text = process.stdout.read()
    shown = os.read(primary, 10_000).decode()
    os.close(primary)
    assert re.search(r"\r\x1b\[K\[=* *\] +\d+% of 2\.0 GiB lines-", shown)
    assert process.returncode in (0, 1), text
    assert int(text.partition("VmHWM:")[2].split()[0]) < 200 * 1024, "kilobytes"
