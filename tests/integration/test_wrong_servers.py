"""A port that is not a daemon's: silent, speaking another protocol, closing at once. Each is told in plain words, soon."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
import structlog

from client import Admin, NotADaemonError, Producer, RequestTimedOutError
from client.transport import cluster as cluster_module
from client.transport import connections as connections_module
from coordinator import Coordinator
from tests.integration.cohort_command import ROOT, arguments, environment

SSH = b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"
HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def server(banner: bytes | None, *, close: bool = False) -> Iterator[str]:
    """Accepts, sends ``banner`` and then closes, or reads on and says nothing more. Yields its address."""
    accepted: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):  # the listener is closed: that is the end
            while True:
                connection, _ = listener.accept()
                accepted.append(connection)
                if banner is not None:
                    connection.sendall(banner)
                if close:
                    connection.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        thread = Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"{host}:{port}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in accepted:
                connection.close()


@pytest.mark.parametrize("banner", [SSH, HTTP], ids=["ssh", "http"])
async def test_a_client_does_not_start_on_a_server_that_speaks_another_protocol(banner: bytes) -> None:
    with server(banner) as address:
        with pytest.raises(NotADaemonError, match=f"{address} is not a Cohort daemon: it sent") as caught:
            async with Admin(bootstrap_servers=address):
                pass
        assert banner[:10].decode() in str(caught.value)


async def test_one_foreign_server_among_the_bootstrap_servers_does_no_harm() -> None:
    with server(SSH) as foreign:
        async with Coordinator() as daemon, Admin(bootstrap_servers=[foreign, daemon.address]) as admin:
            assert await admin.list_topics() == []


@pytest.mark.parametrize("close", [False, True], ids=["silent", "closing"])
async def test_a_client_that_starts_says_what_is_wrong_while_it_tries_on(
    close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "GREETING_TIMEOUT_S", 0.2)
    monkeypatch.setattr(cluster_module, "_NOTICE_S", 0.5)
    reason = "closed the connection instead of answering" if close else "accepts connections but said nothing"
    with (
        structlog.testing.capture_logs() as logs,
        server(None, close=close) as address,
        pytest.raises(RequestTimedOutError, match=reason),
    ):
        await Producer(bootstrap_servers=address, request_timeout_ms=2000).start()
    (notice,) = [line for line in logs if line["event"] == "no_daemon_answers"]
    assert notice["servers"] == address
    assert reason in notice["reason"]


def test_a_client_says_it_within_five_seconds() -> None:
    assert connections_module.GREETING_TIMEOUT_S < cluster_module._NOTICE_S < 5


@pytest.mark.parametrize(
    ("banner", "close", "reason"),
    [
        (SSH, False, "is not a Cohort daemon: it sent b'SSH-2.0-"),
        (None, False, "accepts connections but said nothing within 4 s"),
        (None, True, "closed the connection instead of answering"),
    ],
    ids=["ssh", "silent", "closing"],
)
def test_a_command_ends_with_one_line(banner: bytes | None, close: bool, reason: str) -> None:
    with server(banner, close=close) as address:
        started_at = time.monotonic()
        done = subprocess.run(
            arguments("topics", "list", address=address),
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
            env=environment(),
        )
        took_s = time.monotonic() - started_at
    assert done.returncode == 1
    assert done.stderr.startswith(f"cohort: no daemon answers at {address}: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert took_s < 30  # not the timeout of requests; the bound itself is 4 s, on a machine with time
