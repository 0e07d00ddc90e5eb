"""``cohort groups`` as a process against a real daemon: what it prints, what it changes, how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from client import Admin, Consumer, OffsetAndMetadata, TopicPartition
from tests.daemon_process import DaemonProcess
from tests.integration.cohort_command import ROOT, arguments, cohort, environment, objects, output
from tests.integration.consuming import QUICK, create, fill, until

COLUMNS = {"COLUMNS": "60"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon with topics ``t``, 10 records in each of two partitions, and ``u``."""

    async def prepare(address: str) -> None:
        await create(address, t=2, u=1)
        for partition in (0, 1):
            await fill(address, "t", range(10), partition=partition)

    with DaemonProcess(tmp_path_factory.mktemp("daemon") / "data") as daemon:
        asyncio.run(prepare(daemon.address))
        yield daemon.address


def committed(address: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    async def alter() -> None:
        async with Admin(address) as admin:
            await admin.alter_offsets(group, {TopicPartition(*tp): offset for tp, offset in offsets.items()})

    asyncio.run(alter())


def offsets_of(address: str, group: str) -> dict[tuple[str, int], int]:
    async def look() -> dict[TopicPartition, OffsetAndMetadata]:
        async with Admin(address) as admin:
            return await admin.list_offsets(group)

    return {(topic, partition): offset.offset for (topic, partition), offset in asyncio.run(look()).items()}


async def run(*words: str, address: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """A command while this program goes on."""
    return await asyncio.to_thread(cohort, *words, address=address, **settings)


@pytest.fixture
async def reader(address: str) -> AsyncIterator[Consumer]:
    """A consumer of ``t`` in a group ``active``."""
    async with Consumer("t", bootstrap_servers=address, group_id="active", client_id="app", **QUICK) as consumer:
        await until(lambda: consumer.state == "stable" and len(consumer.assignment()) == 2)
        yield consumer


def test_a_reset_is_shown_and_only_done_with_execute(address: str) -> None:
    committed(address, "reset", {("t", 0): 4})
    words = ["groups", "reset-offsets", "reset", "--topic", "t", "--to-offset", "12"]
    done = cohort(*words, address=address)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "TOPIC  PARTITION  CURRENT  NEW  DIFFERENCE  NOTE",
        "t              0        4   10           6  12 is after the log, which ends here",
        "t              1        -   10           -  12 is after the log, which ends here",
    ]
    assert done.stderr == "dry run, nothing was changed; add --execute to do it\n"
    assert offsets_of(address, "reset") == {("t", 0): 4}
    done = cohort(*words, "--execute", address=address)
    assert (done.returncode, done.stderr) == (0, "done: group 'reset' goes on from the new offsets\n")
    assert offsets_of(address, "reset") == {("t", 0): 10, ("t", 1): 10}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["--topic", "t", "--to-earliest"], {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}),
        (["--topic", "t:1", "--to-latest"], {("t", 0): 4, ("t", 1): 10, ("u", 0): 0}),
        (["--topic", "t:0", "--topic", "u", "--to-offset", "7"], {("t", 0): 7, ("t", 1): 5, ("u", 0): 0}),
        (["--all-topics", "--shift-by", "-3"], {("t", 0): 1, ("t", 1): 2, ("u", 0): 0}),
        (["--all-topics", "--shift-by", "2"], {("t", 0): 6, ("t", 1): 7, ("u", 0): 0}),
        (["--topic", "t", "--to-datetime", "1999-12-31T23:59:59+01:00"], {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}),
        (["--topic", "t", "--to-datetime", "2199-12-31"], {("t", 0): 10, ("t", 1): 10, ("u", 0): 0}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_way_to_reset(address: str, how: list[str], expected: dict[tuple[str, int], int]) -> None:
    committed(address, "ways", {("t", 0): 4, ("t", 1): 5, ("u", 0): 0})
    (dry,) = objects("groups", "reset-offsets", "ways", *how, address=address)
    assert set(dry) == {"group", "state", "executed", "blocked", "partitions"}
    assert set(dry["partitions"][0]) == {"topic", "partition", "current", "new", "difference", "note"}
    assert (dry["group"], dry["state"], dry["executed"], dry["blocked"]) == ("ways", "Empty", False, None)
    (done,) = objects("groups", "reset-offsets", "ways", *how, "--execute", address=address)
    assert done == {**dry, "executed": True}
    assert offsets_of(address, "ways") == expected


def test_a_time_is_shown_as_it_was_read(address: str) -> None:
    words = ["groups", "reset-offsets", "new", "--topic", "t", "--to-datetime"]
    done = cohort(*words, "2026-07-01T08:00:00", address=address, env={"TZ": "Asia/Tokyo"})
    assert "first records at or after 2026-07-01T08:00:00+09:00" in done.stderr
    done = cohort(*words, "2026-07-01T08:00:00Z", address=address, env={"TZ": "UTC"})
    assert "first records at or after 2026-07-01T08:00:00+00:00" in done.stderr


def test_all_groups_are_shown_one_after_the_other(address: str) -> None:
    for group in ("all-b", "all-a"):
        committed(address, group, {("t", 0): 4})
    shown = output("groups", "describe", "--all", address=address)
    assert shown.index("all-a") < shown.index("\n\n") < shown.index("all-b")
    told = [each for each in objects("groups", "describe", "--all", address=address) if each["group"][:4] == "all-"]
    assert [(each["group"], each["offsets"][0]["committed"]) for each in told] == [("all-a", 4), ("all-b", 4)]
    for words in ((), ("all-a", "--all")):
        assert cohort("groups", "describe", *words, address=address).returncode == 2


def test_a_group_that_does_not_exist_yet_may_be_prepared(address: str) -> None:
    words = ["groups", "reset-offsets", "prepared", "--topic", "t", "--to-latest"]
    assert "group 'prepared' does not exist yet; --execute creates it" in cohort(*words, address=address).stderr
    assert "'prepared' does not exist" in cohort("groups", "describe", "prepared", address=address).stderr
    output(*words, "--execute", address=address)
    assert offsets_of(address, "prepared") == {("t", 0): 10, ("t", 1): 10}


async def test_while_a_group_has_members_its_offsets_stay(address: str, reader: Consumer) -> None:
    member_id = reader.group_metadata().member_id
    words = ["groups", "reset-offsets", "active", "--topic", "t", "--to-earliest"]
    dry = await run(*words, address=address)
    assert dry.returncode == 0
    assert "dry run, nothing was changed; --execute would be refused: the offsets of group 'active'" in dry.stderr
    assert member_id in dry.stderr
    for refused in (
        await run(*words, "--execute", address=address),
        await run("groups", "delete", "active", address=address),
        await run("groups", "delete-offsets", "active", "--topic", "t:0", address=address),
    ):
        assert refused.returncode == 1
        assert refused.stderr.startswith("cohort: ")
        assert f"1 member: {member_id} at 127.0.0.1" in refused.stderr
        assert re.search(r"Stop (its|the) members", refused.stderr)
        assert len(refused.stderr.splitlines()) == 1


async def test_members_are_shown_and_removed(address: str, reader: Consumer) -> None:
    member_id = reader.group_metadata().member_id
    (described,) = await asyncio.to_thread(objects, "groups", "describe", "active", address=address)
    assert (described["protocol_type"], described["leader"]) == ("consumer", member_id)
    assert (described["waiting_for"], described["pending_members"], described["empty_since_ms"]) == ([], 0, None)
    assert described["members_without_partitions"] == []
    assert described["members"][0]["topics"] == ["t"]
    narrow = (await run("groups", "describe", "active", address=address, env=COLUMNS)).stdout
    assert f"member      {member_id}\n" in narrow
    assert max(map(len, [line for line in narrow.splitlines() if "member" not in line])) <= 60
    missing = await run("groups", "remove-member", "active", "nobody", address=address)
    assert missing.returncode == 1
    assert f"group 'active' has no member 'nobody'; it has 1 member: {member_id} at 127.0.0.1" in missing.stderr
    removed = await run("groups", "remove-member", "active", member_id, "--json", address=address)
    assert removed.stdout == (
        f'{{"group": "active", "removed": [{{"member_id": "{member_id}", "group_instance_id": null}}]}}\n'
    )
    await until(lambda: reader.state == "stable" and reader.group_metadata().member_id != member_id)
    everybody = await run("groups", "remove-member", "active", "--all", address=address)
    assert "removed from group active" in everybody.stdout


async def test_static_members_have_a_column_and_are_removed_by_the_name_of_their_instance(address: str) -> None:
    settings: dict[str, Any] = {**QUICK, "session_timeout_ms": 30_000, "bootstrap_servers": address}
    async with Consumer("u", group_id="static", group_instance_id="one", client_id="app", **settings) as one:
        await until(lambda: len(one.assignment()) == 1)
        async with Consumer("u", group_id="static", group_instance_id="two", client_id="app", **settings) as two:
            await until(lambda: two.state == "stable" and one.state == "stable")
            shown = (await run("groups", "describe", "static", address=address)).stdout
            assert "MEMBER" in shown
            assert "INSTANCE" in shown
            assert "1 of 2 members owns no partition" in shown
            (described,) = await asyncio.to_thread(objects, "groups", "describe", "static", address=address)
            assert {member["group_instance_id"] for member in described["members"]} == {"one", "two"}
            assert len(described["members_without_partitions"]) == 1
        words = ["groups", "remove-member", "static", "two", "--instance"]
        removed = await run(*words, "--reason", "its machine is gone", address=address)
        assert (removed.returncode, removed.stdout) == (0, "static member 'two' removed from group static\n")
        again = await run(*words, address=address)
        assert again.returncode == 1
        assert "group 'static' has no static member 'two'; it has 1 member: " in again.stderr
    (described,) = await asyncio.to_thread(objects, "groups", "describe", "static", address=address)
    assert "its machine is gone" in described["last_rebalance_reason"]


def test_groups_are_deleted_as_far_as_possible(address: str) -> None:
    committed(address, "old", {("t", 0): 4})
    committed(address, "older", {("t", 0): 4})
    assert output("groups", "delete", "old", address=address) == "group old deleted\n"
    done = cohort("groups", "delete", "nobody", "older", "--json", address=address)
    assert done.returncode == 1
    assert done.stdout == (
        '{"deleted": ["older"], "failed": {"nobody": "group \'nobody\' does not exist; '
        'list_groups (cohort groups list) shows those that do"}}\n'
    )
    assert done.stderr.startswith("cohort: group 'nobody' does not exist")
    listed = {group["group"] for group in objects("groups", "list", address=address)[0]}
    assert not listed & {"old", "older", "nobody"}


def test_offsets_are_deleted_by_topic_and_partition(address: str) -> None:
    committed(address, "less", {("t", 0): 4, ("t", 1): 5, ("u", 0): 0})
    words = ["groups", "delete-offsets", "less", "--topic"]
    assert objects(*words, "t:0", address=address) == [{"group": "less", "deleted": [{"topic": "t", "partition": 0}]}]
    assert output(*words, "t", "--topic", "u", address=address).splitlines() == [
        "group less has no offset any more in t 1",
        "group less has no offset any more in u 0",
    ]
    again = cohort(*words, "t", address=address)
    assert again.returncode == 1
    assert "cohort: group 'less' " in again.stderr


async def test_groups_are_listed_by_state_and_type(address: str, reader: Consumer) -> None:
    async with Admin(address) as admin:
        await admin.alter_offsets("never", {TopicPartition("t", 0): 1})

    async def listed(*words: str) -> set[str]:
        (groups,) = await asyncio.to_thread(objects, "groups", "list", *words, address=address)
        return {group["group"] for group in groups}

    assert "active" in await listed("--state", "stable")
    assert "never" not in await listed("--state", "stable")
    assert "never" in await listed("--state", "EMPTY", "--type", "")
    assert {"active", "never"} <= await listed("--state", "stable", "--state", "empty")
    assert "active" not in await listed("--type", "work")
    nothing = await run("groups", "list", "--type", "work", address=address)
    assert nothing.stdout == "no group matches\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["delete", "nobody"], "group 'nobody' does not exist"),
        (["remove-member", "nobody", "m"], "group 'nobody' does not exist"),
        (["delete-offsets", "nobody", "--topic", "t"], "group 'nobody' does not exist"),
        (["delete-offsets", "nobody", "--topic", "t:0"], "group 'nobody' does not exist"),
        (["reset-offsets", "nobody", "--all-topics", "--to-latest"], "group 'nobody' does not exist"),
        (["reset-offsets", "g", "--topic", "nowhere", "--to-latest"], "topic 'nowhere' does not exist"),
        (
            ["reset-offsets", "g", "--topic", "t:0,7", "--to-latest"],
            "topic 't' has no partition 7; they are numbered 0 to 1",
        ),
        (["reset-offsets", "g", "--topic", "t", "--shift-by", "1"], "nothing to reset in group 'g'"),
    ],
)
def test_failures_say_why_in_one_line_and_exit_1(address: str, words: list[str], reason: str) -> None:
    done = cohort("groups", *words, address=address)
    assert done.returncode == 1
    assert f"cohort: {reason}" in done.stderr.replace("UNKNOWN_TOPIC_OR_PARTITION: ", "")
    assert len(done.stderr.splitlines()) == 1


def test_wrong_usage_exits_2(address: str) -> None:
    done = cohort("groups", "reset-offsets", "g", "--topic", "t", "--to-offset", "-4", address=address)
    assert done.returncode == 2
    assert "--to-offset" in done.stderr


def test_offsets_are_exported_and_reset_from_the_file(address: str, tmp_path: Path) -> None:
    committed(address, "kept", {("t", 0): 4, ("t", 1): 7})
    exported = cohort("groups", "export-offsets", "kept", address=address)
    assert (exported.returncode, exported.stdout) == (0, "t,0,4\nt,1,7\n")
    file = tmp_path / "kept.csv"
    file.write_text(exported.stdout)
    committed(address, "kept", {("t", 0): 9, ("t", 1): 9})
    done = cohort("groups", "reset-offsets", "kept", "--from-file", str(file), "--execute", address=address)
    assert (done.returncode, done.stderr) == (0, "done: group 'kept' goes on from the new offsets\n")
    assert offsets_of(address, "kept") == {("t", 0): 4, ("t", 1): 7}
    both = cohort("groups", "reset-offsets", "kept", "--from-file", str(file), "--topic", "t", address=address)
    assert both.returncode == 2
    assert "--from-file names the partitions" in both.stderr
    file.write_text("t,9,1\n")
    missing = cohort("groups", "reset-offsets", "kept", "--from-file", str(file), address=address)
    assert missing.returncode == 1
    assert "has no partition 9" in missing.stderr
    assert cohort("groups", "export-offsets", "nobody", address=address).returncode == 1


def test_a_reset_by_duration_goes_back_so_long(address: str) -> None:
    committed(address, "timed", {("t", 0): 4})
    words = ["groups", "reset-offsets", "timed", "--topic", "t:0"]
    assert " 4    0 " in cohort(*words, "--by-duration", "1d", address=address).stdout
    time.sleep(0.05)
    assert "no record is that new" in cohort(*words, "--by-duration", "1ms", address=address).stdout
    assert " 4    0 " in cohort(*words, "--by-duration", "P1DT2H", address=address).stdout
    assert cohort(*words, "--by-duration", "soon", address=address).returncode == 2
    assert cohort("groups", "reset-offsets", "timed", "--to-latest", address=address).returncode == 2


async def test_a_watched_group_is_shown_again_until_ctrl_c(address: str, reader: Consumer) -> None:
    words = arguments("groups", "describe", "active", "--watch", "0.1", "--json", address=address)
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, cwd=ROOT, env=environment())
    assert process.stdout is not None
    async with asyncio.timeout(30):
        views = [json.loads(await process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        await process.stdout.read()
        assert await process.wait() == 0
    assert [view["state"] for view in views] == ["Stable"] * 3


def test_a_group_that_does_not_exist_is_not_watched(address: str) -> None:
    assert cohort("groups", "describe", "nix", "--watch", address=address).returncode == 1
