"""The daemon as a process: how it starts, how it ends, what it says; compaction under SIGKILL."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from client.admin import Admin
from coordinator import Coordinator
from coordinator.config import ConfigurationError
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.record_batch import HEADER_BYTES, encode_batch, restamped
from tests.daemon_process import DaemonProcess
from tests.integration.test_bad_input import raw
from tests.integration.test_bounds import ask, fetch, frame, produce
from tests.integration.test_bounds import create as create_topic
from tests.integration.test_crash import connected, create

_MORE_THAN_SOCKETS_HOLD = 48 << 20


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coordinator", *options],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **environment},
    )


_FAULTS = """
import resource, sys
from coordinator.__main__ import _keep_freed_memory
if sys.argv[1] == "kept":
    _keep_freed_memory()
def read():
    buffers = [b"x" * (3 << 20) for _ in range(3)]
for _ in range(5):
    read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_buffers_of_megabytes_take_memory_that_is_there() -> None:
    def faults(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, check=True).stdout)

    if faults("left alone") < 20_000:
        pytest.skip("this library of C keeps memory by itself")
    assert faults("kept") < 200


def test_wrong_settings_exit_with_2_and_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "cohort.toml"
    file.write_text('data_dri = "x"\n')
    for done in (run("--config", str(file)), run("--prot", "1"), run("--port", "x"), run(COHORT_PORT="99999")):
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert "did you mean 'data_dir'" in run("--config", str(file)).stderr


def test_an_address_or_directory_that_cannot_be_had_exits_with_1(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "first") as daemon:
        done = run("--port", str(daemon.port), "--data-dir", str(tmp_path / "second"))
        assert done.returncode == 1
        assert f"cohortd: cannot listen on 127.0.0.1:{daemon.port}: " in done.stderr
        assert "choose another port" in done.stderr
        assert "second" not in done.stderr, "the data directory is not at fault"
    (tmp_path / "file").write_text("")
    done = run("--port", "0", "--data-dir", str(tmp_path / "file"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_directory_that_lost_its_metadata_exits_with_1_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    done = run("--port", "0", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert "metadata.json is missing, but there are 1 directories of partitions, such as orders-0" in done.stderr
    assert "restore metadata.json and metadata.changes from a backup" in done.stderr


def test_a_directory_of_another_node_or_cluster_exits_with_1_and_what_to_do(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with DaemonProcess(tmp_path / name):
            pass
    done = run("--port", "0", "--data-dir", str(tmp_path / "one"), "--node-id", "7")
    assert done.returncode == 1
    assert (
        "this is the directory of node 0, not of node 7: set node_id to 0, or use the directory of that node"
        in done.stderr
    )
    for name in ("metadata.json", "metadata.changes"):
        (tmp_path / "one" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    done = run("--port", "0", "--data-dir", str(tmp_path / "one"))
    assert done.returncode == 1
    assert "node.json says that this directory belongs to cluster " in done.stderr
    assert "Restore all of them from one backup" in done.stderr
    (tmp_path / "one" / "metadata.json").unlink()
    (tmp_path / "one" / "metadata.changes").unlink()
    done = run("--port", "0", "--data-dir", str(tmp_path / "one"))
    assert done.returncode == 1
    assert (
        "metadata.json is missing, but node.json says that this is the directory of node 0 of cluster " in done.stderr
    )
    assert not (tmp_path / "one" / "metadata.json").exists()


def test_it_takes_all_files_it_may_open_and_promises_no_more_than_they_allow(tmp_path: Path) -> None:
    class Limited(DaemonProcess):
        def command(self) -> Sequence[str]:
            return ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh", *super().command()]

    daemon = Limited(tmp_path / "data", "--log-level", "info").start()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    assert any("open_files_raised" in line for line in daemon.output)
    assert daemon.terminate() == 0


async def test_few_open_files_bound_the_partitions_and_everybody_is_still_served(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data")
    command = shlex.join(daemon.command())
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f"ulimit -n 256 && exec {command}", stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        while not (line := await process.stderr.readline()).startswith(b"listening"):
            assert line, "the daemon ended"
        daemon.port = int(line.rpartition(b":")[2])
        clusters = [await connected(daemon, f"client-{number}") for number in range(20)]
        codes = []
        for number in range(8):
            request = CreateTopicsRequest((CreatableTopic(f"t{number}", 20),))
            codes += [topic.error_code for topic in (await clusters[0].call(request, CreateTopicsResponse)).topics]
        assert set(codes) == {ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS}
        for number, cluster in enumerate(clusters):
            await cluster.call_coordinator(f"g{number}", OffsetFetchRequest(f"g{number}", None), OffsetFetchResponse)
            await cluster.close()
    finally:
        process.terminate()
        await process.communicate()


def test_it_logs_json_lines_and_says_where_it_listens(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "data", "--log-format", "json", "--log-level", "info").start()
    assert daemon.output[-1] == f"listening on 127.0.0.1:{daemon.port}\n"
    assert daemon.terminate() == 0
    events = [json.loads(line) for line in daemon.output if line.startswith("{")]
    assert "stopping" in [event["event"] for event in events]
    assert all({"level", "timestamp"} <= event.keys() for event in events)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_drains_and_exits_with_0(tmp_path: Path, number: signal.Signals) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    daemon.send(number)
    assert daemon.wait() == 0


async def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    """The first waits for a client that does not read its answer; no one has to wait for that."""
    daemon = DaemonProcess(tmp_path / "data", "--drain-timeout-ms", "60000", "--log-level", "info").start()
    async with raw(daemon.address) as client:
        await create_topic(client, "orders")
        for _ in range(_MORE_THAN_SOCKETS_HOLD >> 20):
            await ask(client, produce("orders", os.urandom(1_000_000)))
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=30) as deaf:
        deaf.sendall(frame(fetch("orders", 0, 0, max_bytes=_MORE_THAN_SOCKETS_HOLD), 1))
        assert await asyncio.to_thread(deaf.recv, 1)  # the answer has begun to leave, and will not leave as a whole
        daemon.send(signal.SIGTERM)
        async with asyncio.timeout(30):
            while not any("stopping" in line for line in daemon.output):
                await asyncio.sleep(0.01)
        assert await asyncio.to_thread(daemon.terminate) == 1


async def test_offsets_survive_compaction_that_is_killed_again_and_again(tmp_path: Path) -> None:
    daemon = DaemonProcess(
        tmp_path / "data", "--offsets-segment-bytes", "4096", "--compaction-interval-ms", "10", "--log-level", "info"
    )
    expected: dict[int, int] = {}
    for round_ in range(6):
        daemon.start()
        cluster = await connected(daemon)
        if round_ == 0:
            await create(cluster, "orders", 20)
        fetched = await cluster.call_coordinator("g", OffsetFetchRequest("g", None), OffsetFetchResponse)
        stored = {
            entry.partition_index: entry.committed_offset for topic in fetched.topics for entry in topic.partitions
        }
        assert stored == expected
        for number in range(120):
            partition, offset = number % 20, round_ * 1000 + number
            topics = (OffsetCommitTopic("orders", (OffsetCommitPartition(partition, offset),)),)
            response = await cluster.call_coordinator(
                "g", OffsetCommitRequest("g", -1, "", None, topics), OffsetCommitResponse
            )
            assert response.topics[0].partitions[0].error_code == ErrorCode.NONE
            expected[partition] = offset
        await cluster.close()
        daemon.kill()
    assert any("compacted" in line for line in daemon.output), "compaction really ran"
    size = sum(path.stat().st_size for path in (tmp_path / "data").glob("__consumer_offsets-*/*.log"))
    assert size < 6 * 120 * 100, "and took superseded commits away"


async def test_the_embedded_coordinator_keeps_a_directory_that_was_given(tmp_path: Path) -> None:
    for _ in range(2):
        async with Coordinator(str(tmp_path / "data"), log_level="error") as coordinator:
            assert coordinator.address.startswith("127.0.0.1:")
    assert (tmp_path / "data" / "metadata.json").exists()


async def test_the_embedded_coordinator_removes_its_temporary_directory() -> None:
    async with Coordinator(log_level="error") as coordinator:
        directory = Path(coordinator.data_dir)
        assert directory.exists()
    assert not directory.exists()
    with pytest.raises(RuntimeError, match="async with"):
        _ = coordinator.address


async def test_the_embedded_coordinator_checks_its_settings() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'flush'"):
        Coordinator(flsh="os")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_daemon_whose_data_directory_goes_ends_with_the_reason(tmp_path: Path, replaced: bool) -> None:
    daemon = DaemonProcess(tmp_path / "data").start()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    if replaced:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "lock").write_text("")
    assert daemon.wait() == 1
    what = "was replaced by another file" if replaced else "was removed"
    assert f"{tmp_path / 'data' / 'lock'} {what} while the daemon ran" in "".join(daemon.output)


def test_a_signal_during_recovery_ends_it_at_once(tmp_path: Path) -> None:
    """What was not recovered is recovered by the next start."""
    data = tmp_path / "data"
    daemon = DaemonProcess(data).start()

    async def create() -> None:
        async with Admin(daemon.address) as admin:
            await admin.create_topics({"t": 30})

    asyncio.run(create())
    assert daemon.terminate() == 0
    batch = encode_batch([b"v"], timestamps_ms=[1])
    segment = b"".join(restamped(batch, offset, 0, 0) + batch[HEADER_BYTES:] for offset in range(20_000))
    for index in range(30):
        (data / f"t-{index}" / f"{0:020}.log").write_bytes(segment)
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator", "--data-dir", str(data), "--port", "0"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    while (data / "lock").read_text() != str(process.pid):  # from here on it recovers
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    lines = process.stderr.readlines()
    assert process.wait(60) == 0
    process.stderr.close()
    assert not any("listening" in line for line in lines)
    assert any("stopped_before_serving" in line for line in lines)
