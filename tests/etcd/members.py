"""Real etcd processes: one member or three, on loopback, that can be killed, stopped and started again."""

from __future__ import annotations

import base64
import fcntl
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.etcd import build

START_SECONDS: Final = 60
_GIVEN: Final = set[int]()
_RESERVATIONS: Final = os.open(Path("/tmp", f"cohort-test-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600)
"""Not where temporary files go: runs beside this one may have other places for theirs, and have the same ports."""
_ATTEMPTS: Final = 3


class Member:
    """One process; it keeps its ports and its directory when it starts again."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.port, self.peer_port = free_ports(2)
        self.scheme = "http"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect."""
        return "127.0.0.1", self.port

    def start(self, cluster: str, options: Sequence[str]) -> None:
        """Starts it; it is not ready yet."""
        client, peer = f"{self.scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
        with (self.directory / f"{self.name}.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(str(build.find()), "--name", self.name, "--data-dir", str(self.directory / self.name)),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", cluster, "--initial-cluster-state", "new", "--logger", "zap"),
                    *("--log-level", "error", *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        if self._process is not None:
            self._process.kill()  # works on a stopped one too
            self._process.wait(30)
        self._stopped = False

    def stop(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._send(signal.SIGSTOP)
        self._stopped = True

    def cont(self) -> None:
        """SIGCONT."""
        if self._stopped:
            self._send(signal.SIGCONT)
        self._stopped = False

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def healthy(self) -> bool:
        """Whether it answers and knows a leader."""
        try:
            return bool(self.ask("GET", "/health")["health"] == "true")
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return False

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """One call of etcd's JSON gateway."""
        connection = http.client.HTTPConnection(*self.address, timeout=10)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise OSError(f"{path}: {answer.status} {content!r}")
            return dict(json.loads(content))
        finally:
            connection.close()


class Members:
    """A cluster of them."""

    def __init__(self, directory: Path, count: int, *options: str) -> None:
        self._directory = directory
        self._options = options
        self.members = [Member(f"m{number}", directory) for number in range(count)]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where clients connect."""
        return [member.address for member in self.members]

    def start(self) -> None:
        """Starts all and waits until each is healthy. A port may have been taken meanwhile: then with others."""
        for attempt in range(1, _ATTEMPTS + 1):
            for member in self.members:
                self.start_one(member)
            try:
                self.wait_healthy()
            except AssertionError:
                self.close()
                if attempt == _ATTEMPTS:
                    raise
                self.members = [Member(f"m{attempt}{number}", self._directory) for number in range(len(self.members))]
            else:
                return

    def start_one(self, member: Member) -> None:
        """Starts one that is not running."""
        named = ",".join(f"{each.name}=http://127.0.0.1:{each.peer_port}" for each in self.members)
        member.start(named, self._options)

    def wait_healthy(self) -> None:
        """Waits until each member answers and knows a leader."""
        for member in self.members:
            wait_until(partial(_healthy_or_ended, member), f"{member.name} is healthy", START_SECONDS)
            assert not member.ended, f"{member.name} ended: {self.said(member)}"

    def heal(self) -> None:
        """All run and are healthy again."""
        for member in self.members:
            member.cont()
            if member.ended:
                self.start_one(member)
        self.wait_healthy()

    def leader(self) -> Member:
        """The one that leads now, as a member says that runs."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for member in self.members:
                try:
                    status = member.ask("POST", "/v3/maintenance/status", {})
                except (OSError, http.client.HTTPException):
                    continue
                if status["header"]["member_id"] == status.get("leader"):
                    return member
            time.sleep(0.05)
        raise AssertionError("no member leads")

    def followers(self) -> list[Member]:
        """The others."""
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def compact(self) -> None:
        """Forgets all that is past."""
        member = next(member for member in self.members if not member.ended)
        answer = member.ask("POST", "/v3/kv/range", {"key": base64.b64encode(b"x").decode()})
        member.ask("POST", "/v3/kv/compaction", {"revision": answer["header"]["revision"], "physical": True})

    def said(self, member: Member) -> str:
        """The end of what it wrote."""
        return (self._directory / f"{member.name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]

    def close(self) -> None:
        """Ends all."""
        for member in self.members:
            member.kill()


def _healthy_or_ended(member: Member) -> bool:
    return member.healthy() or member.ended


def free_ports(count: int) -> list[int]:
    """Ports that no process listens on now, below those that outgoing connections take, and that no other test is given
    while this process runs: also not one whose daemon is down for a moment."""
    found: list[int] = []
    draw = random.Random()
    while len(found) < count:
        port = draw.randrange(12_000, 32_000)
        if not _reserved(port):
            continue
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


def _reserved(port: int) -> bool:
    """Reserves a port among the tests of this machine; False when it is.

    A byte of a file is locked for each: such locks end with the process, whatever ends it, and no child has them.
    """
    if port in _GIVEN:
        return False
    try:
        fcntl.lockf(_RESERVATIONS, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _GIVEN.add(port)
    return True


def wait_until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Waits for a condition of another process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)
