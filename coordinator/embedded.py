"""A coordinator inside another program: for tests, notebooks and small tools."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coordinator.config import ConfigurationError, Settings, settings_from
from coordinator.daemon import Daemon, DaemonFailedError, Origins
from coordinator.filesystem.files import FileStorage
from coordinator.log.compaction_process import ProcessPasses
from coordinator.log_output import set_level
from coordinator.metadata.etcd.rpc import Access


def _boot_id() -> str:
    """The kernel's; where there is none each process counts as a start of the machine, which is on the safe side."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return uuid.uuid4().hex


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Where there is none (macOS), the monotonic clock, which goes on there while the machine sleeps."""

SYSTEM_ORIGINS = Origins(
    wall_ms=lambda: time.time_ns() // 1_000_000,
    new_id=lambda: uuid.uuid4().hex,
    boot_id=_boot_id,
    boot_ms=lambda: time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000,
)
"""The machine's clock and random ids."""


def metadata_access(settings: Settings) -> Access:
    """How the members of etcd are reached, with the files that the settings name. Raises ``ConfigurationError``."""

    def content(name: str) -> bytes | None:
        path = getattr(settings, name)
        try:
            return Path(path).read_bytes() if path else None
        except OSError as error:
            raise ConfigurationError(f"{name}: {path} cannot be read: {error.strerror}") from error

    return Access(
        ca=content("metadata_ca"),
        certificate=content("metadata_cert"),
        key=content("metadata_key"),
        user=settings.metadata_user,
        password=(content("metadata_password_file") or b"").decode(errors="surrogateescape").rstrip("\r\n"),
        allow_old_etcd=settings.allow_old_etcd == "yes",
    )


class Coordinator:
    """A whole daemon on the running event loop::

        async with Coordinator() as coordinator:
            ...  # connect clients to coordinator.address

    Log lines go where the program has configured structlog to put them, or else into ``logging`` under
    ``cohort.coordinator``; ``log_level`` sets the least severe one while it runs.
    ``data_dir=None`` takes a temporary directory that is removed at exit; a directory given is kept. ``port=0`` picks a
    free one. ``settings`` are those of ``coordinator.config.Settings``. Raises ``ConfigurationError`` for unknown or absurd
    ones, and from ``async with`` what ``Daemon.start`` raises; ``DaemonFailedError`` at exit if the daemon had to end.
    """

    def __init__(self, data_dir: str | None = None, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
        self._temporary = data_dir is None
        self._sets_level = "log_level" in settings
        self._level_before = 0
        self._settings: Settings = settings_from(
            {**settings, "host": host, "port": port, "data_dir": "(temporary)" if data_dir is None else str(data_dir)}
        )
        self._data_dir = data_dir
        self._daemon: Daemon | None = None

    @property
    def address(self) -> str:
        """``"host:port"``, to be given to clients. Raises ``RuntimeError`` outside ``async with``."""
        if self._daemon is None:
            raise RuntimeError("the coordinator is not running: use it inside 'async with'")
        host, port = self._daemon.address
        return f"{host}:{port}"

    @property
    def kafka_address(self) -> str:
        """``"host:port"``, as bootstrap servers for Kafka's clients; the setting ``kafka_port`` gives them a port, -1 a free
        one. Raises ``RuntimeError`` outside ``async with``, and without such a port."""
        if self._daemon is None:
            raise RuntimeError("the coordinator is not running: use it inside 'async with'")
        if self._daemon.kafka_address is None:
            raise RuntimeError("the coordinator has no port for Kafka's clients: give it kafka_port=-1")
        host, port = self._daemon.kafka_address
        return f"{host}:{port}"

    @property
    def http_address(self) -> str:
        """``"host:port"`` of the page, metrics and health; the setting ``http="127.0.0.1:0"`` gives them a free port. Raises
        ``RuntimeError`` outside ``async with``, and without such a port."""
        if self._daemon is None:
            raise RuntimeError("the coordinator is not running: use it inside 'async with'")
        if self._daemon.http_address is None:
            raise RuntimeError("the coordinator serves no metrics: give it http='127.0.0.1:0'")
        host, port = self._daemon.http_address
        return f"{host}:{port}"

    @property
    def data_dir(self) -> str:
        """Where the logs are. Raises ``RuntimeError`` before the coordinator runs in a temporary directory."""
        if self._data_dir is None:
            raise RuntimeError("the coordinator is not running: use it inside 'async with'")
        return str(self._data_dir)

    async def __aenter__(self) -> Self:
        if self._sets_level:
            self._level_before = set_level(self._settings.log_level)
        if self._temporary:
            self._data_dir = tempfile.mkdtemp(prefix="cohort-")
        try:
            storage, access = FileStorage(self.data_dir), metadata_access(self._settings)
            daemon = Daemon(self._settings, storage, SYSTEM_ORIGINS, ProcessPasses(), metadata_access=access)
            await daemon.start()
        except BaseException:
            self._clean_up()
            raise
        self._daemon = daemon
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return
        try:
            await daemon.stop()
        finally:
            self._clean_up()
        if daemon.failed.done() and error is None:
            raise DaemonFailedError(daemon.failed.result())

    def _clean_up(self) -> None:
        if self._sets_level:
            set_level(self._level_before)
        if self._temporary and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None
