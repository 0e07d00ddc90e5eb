"""A claim in the README is a claim a test makes: its programs and its terminal session are run as they stand."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

import client
from client import Admin, CohortError, Consumer, ConsumerRecord, Producer, Transaction
from client.bench.assign_cases import ASSIGNORS
from client.bench.membership_history import History, replay, table
from coordinator import Coordinator
from tests.daemon_process import DaemonProcess

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
TEXT = "\n".join([README, *PAGES.values()])
DEFAULT_ADDRESS = "127.0.0.1:7337"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_it_opens_with_what_it_is_and_the_two_commands() -> None:
    first_shell = README.index("```sh")
    assert "Kafka's consumer groups for Python" in README[:first_shell]
    install, demo, tests = (block.splitlines() for block in blocks("sh")[:3])
    assert install == ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -e ."]
    assert demo == ["cohort demo"]
    assert tests == ["pip install -e '.[test]'", "python -m pytest"]


def test_ci_installs_and_tests_as_the_readme_says() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert "python -m pytest" in commands
    assert "-m venv" in script
    assert "-e '.[test]'" in script
    assert '"$bin/python" -m pytest' in script


SERVICES = [program for program in blocks("python") if "\nrun(main())" in program]
PROGRAMS = [
    program
    for program in blocks("python")
    if "spark_session" not in program and "FastAPI(" not in program and program not in SERVICES
]
"""The one on Spark needs lines to count: ``tests/integration/spark/test_pipeline.py`` runs it, twice. The one on FastAPI is
run by ``tests/integration/test_service_page.py``."""


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_its_programs_run(number: int, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        program = tmp_path / "program.py"
        source = PROGRAMS[number].replace(DEFAULT_ADDRESS, daemon.address)
        program.write_text(source, encoding="utf-8")
        options = ["-m", "pytest", "-p", "no:asyncio"] if "\ndef test_" in source else ["-W", "error"]
        done = subprocess.run(
            [sys.executable, *options, str(program)], capture_output=True, text=True, timeout=110, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_its_programs_pass_a_strict_type_check(tmp_path: Path) -> None:
    names = [f"program_{number}.py" for number, _ in enumerate(blocks("python"))]
    for name, program in zip(names, blocks("python"), strict=True):
        (tmp_path / name).write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES, ids=range(len(SERVICES)))
async def test_its_service_serves_until_it_is_told_to_end(service: str, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "data") as daemon:
        async with Admin(daemon.address) as admin, Producer(daemon.address) as producer:
            await admin.create_topics({"orders": 1, "orders.dlq": 1})
            await producer.send_and_wait("orders", b"tea")
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-W", "error", "-c", service.replace(DEFAULT_ADDRESS, daemon.address)),
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"served tea\n"
            process.terminate()
            assert await asyncio.wait_for(process.wait(), 60) == 0
            assert not (await admin.describe_groups("kitchen"))["kitchen"].members


@pytest.mark.timeout(400)  # a dozen commands, each a Python of its own
def test_its_terminal_session_runs(tmp_path: Path) -> None:
    (session,) = blocks("console")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COHORT_PORT": str(port),
        "COHORT_BOOTSTRAP": f"127.0.0.1:{port}",
    }
    commands = "\n".join(line.removeprefix("$ ") for line in session.splitlines())
    shell = subprocess.Popen(
        ["bash", "-c", f"set -emo pipefail; trap 'kill -KILL %1' ERR\n{commands}\nwait %1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    out, err = shell.communicate(timeout=300)
    assert shell.returncode == 0, err
    assert "acknowledged" in out + err
    assert "readers" in out


def test_its_table_of_assignors_is_what_the_command_prints() -> None:
    def but_the_time(line: str) -> str:
        return line.rsplit("|", 2)[0]

    printed = table([replay(History.recorded(), assignor) for assignor in ASSIGNORS]).splitlines()
    shown = [line for line in TEXT.splitlines() if but_the_time(line) == but_the_time(printed[0])]
    assert len(shown) == 1
    start = TEXT.splitlines().index(shown[0])
    found = TEXT.splitlines()[start : start + len(printed)]
    assert [but_the_time(line) for line in found] == [but_the_time(line) for line in printed]


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_its_links_lead_somewhere(page: str) -> None:
    text, folder = (README, ROOT) if page == "README.md" else (PAGES[page], ROOT / "docs")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (folder / link).exists()] == []
    assert links or page != "README.md"


def test_options_of_aiokafka_are_named_as_its_errors_name_them() -> None:
    table = PAGES["coming-from-aiokafka.md"].partition("## Options")[2].partition("## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)?(.*) \|$", table, re.MULTILINE)
    assert len(rows) > 10
    for theirs, ours, advice in rows:
        owner: Callable[..., object] = Consumer if advice else Producer
        with pytest.raises(TypeError, match=f"it is named {ours}" if ours else "leave it out"):
            owner(**{theirs: 1})


@pytest.mark.parametrize("name", ["lag_weighted.py", "spark_counts.py"])
def test_its_longer_programs_are_those_that_are_tested(name: str) -> None:
    assert (ROOT / "tests" / "examples" / name).read_text(encoding="utf-8") in blocks("python")


def test_what_the_promises_are_tested_by_is_there() -> None:
    table = PAGES["promises.md"].partition("## How each promise is tested")[2]
    rows = re.findall(r"^\| .* \|$", table, re.MULTILINE)[1:]
    assert len(rows) == 11
    for row in rows:
        named = [ROOT / path for path in re.findall(r"`(tests/[\w./]+)`", row)]
        assert len(named) > 2, row
        for path in named:
            assert list(path.glob("**/test_*.py")) or path.name.startswith("test_"), path
            assert path.exists(), path


def rows_of(page: str, heading: str) -> list[tuple[str, str]]:
    """The rows of the tables of a part of a page."""
    part = PAGES[page].partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [(row[0], row[1]) for row in re.findall(r"^\| (`.*?) \| (.*) \|$", part, re.MULTILINE)]


CONFLUENT = "coming-from-confluent-kafka.md"


def is_a_key(key: str) -> bool:
    """Whether librdkafka has a setting of this name."""
    try:
        confluent_kafka.Producer({key: "", "log_level": 0})
    except confluent_kafka.KafkaException as error:  # of most settings an empty text is no value
        return "No such configuration property" not in str(error)
    return True


def test_keys_of_confluent_kafka_are_its_keys_and_ours_are_parameters() -> None:
    rows = rows_of(CONFLUENT, "Configuration")
    assert len(rows) > 35
    assert not is_a_key("group_id")
    ours = {*inspect.signature(Consumer).parameters, *inspect.signature(Producer).parameters}
    assert [theirs for theirs, _ in rows if not is_a_key(theirs.strip("`"))] == []
    named = [name[1] for _, told in rows if (name := re.match(r"`(\w+)`", told))]
    assert set(named) <= ours | {"process"}
    assert len(named) > 30


def test_what_is_called_in_confluent_kafka_and_here_exists() -> None:
    theirs = {
        "consumer": confluent_kafka.Consumer,
        "producer": confluent_kafka.Producer,
        "message": confluent_kafka.Message,
    }
    ours = {"consumer": Consumer, "producer": Producer, "admin": Admin, "tx": Transaction, "record": ConsumerRecord}
    for heading in ("The poll loop", "Callbacks become awaits", "Errors", "Transactions"):
        for left, right in rows_of(CONFLUENT, heading):
            for code, owners in ((left, theirs), (right, ours)):
                for owner, name in re.findall(r"\b(consumer|producer|message|admin|tx|record)\.(\w+)", code):
                    assert hasattr(owners[owner], name), f"{owner}.{name}"
            for name in re.findall(r"KafkaError\.(\w+)", left):
                assert hasattr(confluent_kafka.KafkaError, name)
            for name in re.findall(r"\b([A-Z]\w+Error)\b", right):
                assert hasattr(client, name)
    for error in ("retriable", "abortable"):
        assert hasattr(CohortError, error)


def test_programs_of_confluent_kafka_are_as_it_has_them() -> None:
    programs = re.findall(r"^```text\n(.*?)^```", PAGES[CONFLUENT], re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    owners = {
        "consumer": confluent_kafka.Consumer,
        "producer": confluent_kafka.Producer,
        "message": confluent_kafka.Message,
    }
    for program in programs:
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners:
                assert hasattr(owners[node.value.id], node.attr), node.attr


async def test_keys_are_placed_as_murmur2_random_of_librdkafka_places_them() -> None:
    keys = [b"table %d" % number for number in range(20)] + [b"", b"\xff" * 33]
    placed: dict[bytes, int] = {}
    async with Coordinator(kafka_port=-1) as coordinator:
        async with Admin(coordinator.address) as admin:
            await admin.create_topics({"orders": 7})
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": coordinator.kafka_address, "partitioner": "murmur2_random"}
        )
        for key in keys:
            producer.produce(
                "orders", b"tea", key=key, on_delivery=lambda _, told: placed.update({told.key(): told.partition()})
            )
        assert await asyncio.to_thread(producer.flush, 30) == 0
        async with Producer(coordinator.address) as ours:
            assert {key: (await ours.send_and_wait("orders", b"tea", key=key)).partition for key in keys} == placed
