"""A process of a chaos run, from within: what every one is started with, and what it is told on its stdin."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from client.cli.session import configure_logging


class Program(Protocol):
    """What the process is there for; it gives the exit status."""

    async def run(self) -> int: ...


def arguments(module: str, description: str | None, *required: str) -> argparse.ArgumentParser:
    """The options that ``ChaosProcess`` gives to each, and the ``required`` ones of this one."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    for name in ("name", "bootstrap", *required):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    return parser


def run(parser: argparse.ArgumentParser, make: Callable[[argparse.Namespace], Program]) -> int:
    """The process from its options to its exit status."""
    options = parser.parse_args()
    configure_logging()

    async def work() -> int:
        return await make(options).run()

    return asyncio.run(work())


async def commands() -> AsyncIterator[str]:
    """The lines of stdin. It ends with stdin: then the process has to end too."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()
