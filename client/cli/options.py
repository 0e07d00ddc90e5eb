"""Arguments that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from client.cli.profiles import PROFILE_VARIABLE, chosen_profile, profiles_file
from client.transport.metadata import DEFAULT_PORT, parse_bootstrap_servers

DEFAULT_BOOTSTRAP: Final = f"127.0.0.1:{DEFAULT_PORT}"
BOOTSTRAP_VARIABLE: Final = "COHORT_BOOTSTRAP"

_DURATION: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_ISO_DURATION: Final = re.compile(
    r"P(?=.)(?:([0-9]{1,9})D)?(?:T(?=.)(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})S)?)?"
)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_MAX_PARTITIONS: Final = 1_000_000

Subparsers = argparse._SubParsersAction  # argparse has no public name for what add_subparsers() returns


def add_global_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``-b``, ``--profile`` and ``--json``, which may stand before or after the command.

    They leave no default in the namespace: the innermost parser would overwrite what an outer one has read.
    """
    parser.add_argument(
        "-b",
        "--bootstrap",
        metavar="HOST[:PORT]",
        type=bootstrap,
        default=argparse.SUPPRESS,
        help=f"the daemon to talk to (default: the profile's, ${BOOTSTRAP_VARIABLE}, or {DEFAULT_BOOTSTRAP})",
    )
    parser.add_argument(
        "--profile",
        metavar="PROFILE",
        default=argparse.SUPPRESS,
        help=f"a profile of ~/.config/cohort/config.toml (default: ${PROFILE_VARIABLE}, or what that file chooses)",
    )
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON instead of tables for people"
    )


def fill_in(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Sets ``json`` and ``bootstrap`` of a command line that leaves them open: what is nearest to this call wins.

    The command line, a profile that it names, the variable for the daemon, a profile of the environment or of the file.
    Raises ``CommandError`` for a profile that is not there, ``argparse.ArgumentTypeError`` for a variable without a daemon.
    """
    named = getattr(options, "profile", None)
    profile = chosen_profile(named or environment.get(PROFILE_VARIABLE) or None, profiles_file(environment))
    options.json = getattr(options, "json", bool(profile.json))
    if hasattr(options, "bootstrap"):
        return
    variable = environment.get(BOOTSTRAP_VARIABLE)
    if profile.bootstrap is not None and (named or not variable):
        options.bootstrap = profile.bootstrap
    else:
        options.bootstrap = bootstrap(variable or DEFAULT_BOOTSTRAP)


def add_command(
    subparsers: Subparsers[Any], name: str, summary: str, *, description: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """A command's parser with the global options, a help text and examples."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=description or f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{examples}" if examples else None,
    )
    add_global_options(parser)
    return parser


def bootstrap(text: str) -> str:
    """``HOST`` or ``HOST:PORT``, several joined by commas."""
    try:
        parse_bootstrap_servers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def positive(text: str) -> int:
    """A whole number from 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return number


def whole(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def duration_ms(text: str) -> int:
    """A length of time with its unit, such as ``60s``, or as ISO 8601 has it (``PT2H``), in milliseconds."""
    match = re.fullmatch(_DURATION, text)
    if match is not None:
        return int(match[1]) * _UNITS_MS[match[2]]
    match = re.fullmatch(_ISO_DURATION, text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time, such as 500ms, 60s, 5m, 2h, 1d or PT2H")
    return sum(int(count or 0) * _UNITS_MS[unit] for count, unit in zip(match.groups(), "dhms", strict=True))


def point_in_time(text: str) -> datetime:
    """An ISO 8601 time with its offset from UTC (the local one if it has none), or a length of time ago such as ``2h``."""
    try:
        if re.fullmatch(_DURATION, text) or re.fullmatch(_ISO_DURATION, text):
            return datetime.now(UTC) - timedelta(milliseconds=duration_ms(text))
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no ISO 8601 time, such as 2026-11-21, 2026-11-21T08:00:00 (local) or 2026-11-21T08:00:00Z, "
            "and no length of time ago, such as 15m, 2h or 1d"
        ) from error


def partition_numbers(text: str) -> tuple[int, ...]:
    """``0,2-5``: numbers and ranges of partitions, sorted."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise argparse.ArgumentTypeError(f"{part!r} is no partition, write numbers and ranges such as 0,2-5")
        first, last = int(low), int(high or low)
        if not first <= last < first + _MAX_PARTITIONS:
            raise argparse.ArgumentTypeError(f"{part!r} is no range of partitions, such as 2-5")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def setting(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE, such as segment.bytes=1048576")
    return name, value
