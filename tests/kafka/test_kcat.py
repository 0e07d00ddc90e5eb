"""kcat against a daemon: what its users type, and what it prints.

Left out where kcat is not installed (Debian: ``apt install kcat``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.daemon_process import DaemonProcess

pytestmark = pytest.mark.kafka_suites

SECONDS = 60


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not in PATH; install it: apt install kcat")
    with DaemonProcess(tmp_path_factory.mktemp("kcat"), "--kafka-port", "-1", "--flush", "os") as daemon:
        yield daemon.kafka_address


def kcat(servers: str, *arguments: str, sent: str = "", status: int = 0) -> str:
    """What it prints; ``sent`` is its standard input."""
    done = subprocess.run(
        ["kcat", "-b", servers, *arguments], input=sent, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


READ = ("-C", "-o", "beginning", "-e", "-q")


def test_lines_with_keys_and_headers_come_back_as_they_were_sent(servers: str) -> None:
    kcat(servers, "-P", "-t", "orders", "-K", ":", sent="a:1\nb:2\n")
    kcat(servers, "-P", "-t", "orders", "-H", "from=here", "-H", "to=there", sent="3\n")
    assert kcat(servers, *READ, "-t", "orders", "-f", "%o %k=%s %h\n") == "0 a=1 \n1 b=2 \n2 =3 from=here,to=there\n"
    last = json.loads(kcat(servers, "-C", "-t", "orders", "-o", "-1", "-e", "-q", "-J"))
    assert (last["offset"], last["payload"], last["headers"]) == (2, "3", ["from", "here", "to", "there"])


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_lines_of_an_idempotent_producer(servers: str, compression: str) -> None:
    lines = "".join(f"{number}\n" for number in range(2_000))
    kcat(servers, "-P", "-t", compression, "-z", compression, "-X", "enable.idempotence=true", sent=lines)
    assert kcat(servers, *READ, "-t", compression) == lines


def test_offsets_are_found_by_time(servers: str) -> None:
    kcat(servers, "-P", "-t", "times", sent="1\n2\n3\n")
    assert kcat(servers, "-Q", "-t", "times:0:-1").strip() == "times [0] offset 3"
    assert kcat(servers, "-Q", "-t", "times:0:1700000000000").strip() == "times [0] offset 0"
    assert (
        kcat(servers, "-C", "-t", "times", "-o", "s@1700000000000", "-o", "e@9000000000000", "-e", "-q") == "1\n2\n3\n"
    )


@pytest.mark.parametrize(("strategy", "group"), [("range,roundrobin", "eager"), ("cooperative-sticky", "cooperative")])
def test_a_group_goes_on_where_it_was(servers: str, strategy: str, group: str) -> None:
    reading = ("-X", "auto.offset.reset=earliest", "-X", f"partition.assignment.strategy={strategy}", "-q")
    kcat(servers, "-P", "-t", group, sent="1\n2\n")
    assert kcat(servers, *reading, "-c", "2", "-G", group, group) == "1\n2\n"
    kcat(servers, "-P", "-t", group, sent="3\n")
    assert kcat(servers, *reading, "-c", "1", "-G", group, group) == "3\n"


def test_what_there_is_is_listed_and_what_is_not_there_is_named(servers: str) -> None:
    kcat(servers, "-P", "-t", "there", sent="1\n")
    listed = json.loads(kcat(servers, "-L", "-J"))
    assert [broker["name"] for broker in listed["brokers"]] == [servers]
    assert "there" in [topic["topic"] for topic in listed["topics"]]
    refused = kcat(servers, *READ, "-t", "other", "-X", "allow.auto.create.topics=false", status=1)
    assert "Unknown topic or partition" in refused
