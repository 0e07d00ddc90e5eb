"""``cohortd``: the daemon as a process. Exit 0 after SIGTERM or SIGINT, 1 when it cannot serve, 2 for wrong settings."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from coordinator.config import ConfigurationError, Settings, fit_open_files, load_settings
from coordinator.daemon import AddressError, Daemon
from coordinator.embedded import SYSTEM_ORIGINS, metadata_access
from coordinator.filesystem.files import FileStorage
from coordinator.filesystem.storage import DataDirectoryLockedError
from coordinator.log.compaction_process import ProcessPasses
from coordinator.log_output import configure, get_logger
from coordinator.log_writer import LogWriter, queue_standard_error
from coordinator.metadata.encoding import MetadataDamagedError
from coordinator.metadata.etcd.watching import UnreadableKeyError
from coordinator.metadata.open import ExtraMissingError
from coordinator.metadata.store import MetadataUnavailableError
from coordinator.nodes.registration import RegistrationRefusedError
from coordinator.runtime.collector import Collector
from coordinator.workers import (
    SERVES,
    SERVES_HTTP,
    SERVES_KAFKA,
    check_alone,
    check_directory,
    serve_with_workers,
)

log = get_logger()

_LAST_LINES_S: Final = 2.0
"""How long the end of the process waits for the last lines of the log to be written."""

_LOOK_FOR_GARBAGE_S: Final = 600.0
"""How often the daemon asks whether dead cycles may have piled up; counting a million objects takes some ms."""


_SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread may keep the interpreter from the loop. Threads that read and check batches would take Python's own 5 ms
again and again."""

_ABANDONED_START_S: Final = 2.0

_OPEN_MAX: Final = 10_240
"""As many open files as macOS takes for a soft limit where the hard one names no bound (setrlimit(2) of macOS)."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 16 * 1024 * 1024
_LARGE_BYTES: Final = 4 * 1024 * 1024
"""What glibc's ``mallopt`` is told: an arena keeps so much of what is free, and only larger blocks are mapped one by one."""


def main(arguments: Sequence[str] | None = None, *, as_worker: bool = False) -> int:
    """Runs the daemon until it is told to stop; returns the exit status. ``as_worker``: as one of ``workers``."""
    standard_error, output = sys.stderr, queue_standard_error()
    try:
        return _run(sys.argv[1:] if arguments is None else arguments, output, as_worker)
    finally:
        output.flush(_LAST_LINES_S)
        sys.stderr = standard_error


def _run(arguments: Sequence[str], output: LogWriter, as_worker: bool) -> int:
    try:
        settings, warnings = load_settings(arguments, os.environ)
        configure(settings.log_format, settings.log_level)
        for warning in warnings:
            log.warning("variable_ignored", reason=warning)
        if not as_worker:
            check_directory(settings)
            if settings.workers > 1:
                check_alone(settings)
                return asyncio.run(serve_with_workers(settings))
        settings, lowered = fit_open_files(settings, _raise_open_files())
    except ConfigurationError as error:
        print(f"cohortd: {error}", file=sys.stderr)
        return 2
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _keep_freed_memory()
    if lowered:
        log.info("limits_lowered", reason=lowered)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(settings, output))


def _keep_freed_memory() -> None:
    """Has the buffers of a megabyte that every large read and request takes come from memory that is there already.

    Left alone, glibc gives the end of a heap back to the system and takes it anew, page by page, as chance has placed the
    blocks: one daemon then pays 30,000 page faults for 100 MB that are read, and twice the time of another that pays none.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another library of C, whose way is its own
        return
    for option, value in ((_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_MMAP_THRESHOLD, _LARGE_BYTES)):
        mallopt(option, value)


def _raise_open_files() -> int:
    """Raises the soft limit of open files to the hard one; returns how many may be open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    reason = ""
    for most in (hard, min(_OPEN_MAX, hard)):
        if reason and soft >= most:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        except (OSError, ValueError) as error:  # some systems have a lower bound of their own
            reason = str(error)
        else:
            log.info("open_files_raised", before=soft, now=most)
            return most
    log.warning("open_files_not_raised", open_files=soft, error=reason)
    return soft


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None  # stock asyncio serves as well, only slower
    return uvloop.new_event_loop


async def _serve(settings: Settings, output: LogWriter) -> int:
    stopping = asyncio.Event()
    _on_signals(stopping)
    collector = Collector(time.process_time)
    collector.start()
    garbage = [asyncio.create_task(_collect_in_steps(collector))]
    try:
        storage, access = FileStorage(settings.data_dir), metadata_access(settings)
        daemon = Daemon(settings, storage, SYSTEM_ORIGINS, ProcessPasses(), metadata_access=access)
        if not await _started(daemon, stopping):
            log.info("stopped_before_serving")
            output.flush(_LAST_LINES_S)
            os._exit(0)
    except (AddressError, ConfigurationError) as error:
        print(f"cohortd: {error}", file=sys.stderr)
        return 1 if isinstance(error, AddressError) else 2
    except (DataDirectoryLockedError, MetadataDamagedError, OSError) as error:
        print(f"cohortd: cannot serve {settings.data_dir!r}: {error}", file=sys.stderr)
        return 1
    except (MetadataUnavailableError, UnreadableKeyError, RegistrationRefusedError, ExtraMissingError) as error:
        print(f"cohortd: cannot join the cluster of {settings.metadata}: {error}", file=sys.stderr)
        return 1
    if daemon.http_address is not None:
        print(SERVES_HTTP, "http://{}:{}".format(*daemon.http_address), file=sys.stderr)
    if daemon.kafka_address is not None:
        print(SERVES_KAFKA, "{}:{}".format(*daemon.kafka_address), file=sys.stderr)
    print(SERVES, "{}:{}".format(*daemon.address), file=sys.stderr)  # the last line: what starts a daemon waits for it
    ends: list[asyncio.Future[Any]] = [asyncio.create_task(stopping.wait()), daemon.failed]
    garbage.append(asyncio.create_task(_collect_now_and_then(daemon, collector)))
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for collecting in garbage:
        collecting.cancel()
    if daemon.failed.done():
        # Nothing may be written or answered any more, so there is nothing to drain.
        print(f"cohortd: {daemon.failed.result()}", file=sys.stderr)
        await daemon.leave()
        output.flush(_LAST_LINES_S)
        os._exit(1)
    log.info("stopping")
    await daemon.stop()
    return 0


async def _started(daemon: Daemon, stopping: asyncio.Event) -> bool:
    """Starts the daemon; returns False when it was told to stop meanwhile.

    What a start that is cut short leaves is what a crash would: the next one does it again. So nothing but the disk calls
    under way is waited for, and those not for long: a scan of a large segment takes its time.
    """
    starting, stopped = asyncio.ensure_future(daemon.start()), asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,), timeout=_ABANDONED_START_S)
        return False
    stopped.cancel()
    await starting
    return True


async def _collect_in_steps(collector: Collector) -> None:
    while True:
        pause_s = collector.step()
        await asyncio.sleep(pause_s)


async def _collect_now_and_then(daemon: Daemon, collector: Collector) -> None:
    await daemon.wait_loaded()
    collector.settle()
    while True:
        await asyncio.sleep(_LOOK_FOR_GARBAGE_S)
        collector.collect_if_doubled()


def _on_signals(stopping: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT drains, the second exits at once."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


if __name__ == "__main__":
    sys.exit(main())
