"""A daemon as a separate process, for tests that kill it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


class DaemonProcess:
    """``python -m coordinator`` on a data directory; once started it keeps its port, so that clients find it again."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.options = options
        self.port = 0
        self.output: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def address(self) -> str:
        """``"host:port"``."""
        return f"127.0.0.1:{self.port}"

    @property
    def kafka_address(self) -> str:
        """Where it listens for Kafka's clients; "" when it does not."""
        found = [line.split()[-1] for line in self.output if line.startswith("listening for Kafka's clients on ")]
        return found[-1] if found else ""

    def resident_bytes(self) -> int:
        """What it has in memory now, as Linux tells it."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def command(self) -> Sequence[str]:
        """What is run."""
        return [
            *(sys.executable, "-m", "coordinator"),
            *("--data-dir", str(self.data_dir), "--port", str(self.port), "--log-level", "warning"),
            *self.options,
        ]

    def start(self) -> Self:
        """Starts it and waits until it listens."""
        self._process = subprocess.Popen(self.command(), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.output.append(line)
            match = re.match(r"listening on \S+:(\d+)$", line.rstrip())
            if match:
                self.port = int(match.group(1))
                break
        else:
            self._process.stderr.close()
            raise AssertionError(f"the daemon ended with {self._process.wait(10)}: {''.join(self.output)}")
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        return self

    def kill(self) -> None:
        """SIGKILL: no goodbye, no flush."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        return self._end(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal and returns at once."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Waits for its end; returns the exit status."""
        assert self._process is not None
        status = self._process.wait(30)
        if self._reader is not None:
            self._reader.join(10)
        if self._process.stderr is not None:
            self._process.stderr.close()
        return status

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait()

    def _read(self, stream: object) -> None:
        for line in stream:  # type: ignore[attr-defined]
            self.output.append(line)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
