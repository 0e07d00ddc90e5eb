"""Profiles of the command line: which cluster a name such as ``prod`` stands for.

A TOML file, ``$XDG_CONFIG_HOME/cohort/config.toml`` or ``~/.config/cohort/config.toml``::

    profile = "dev"                  # what counts when none is named; may be left out

    [profiles.dev]
    bootstrap = "127.0.0.1:7337"

    [profiles.prod]
    bootstrap = "10.0.0.5:7337,10.0.0.6:7337"
    json = true                      # as if --json were given
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from client.cli.failure import CommandError
from client.transport.metadata import parse_bootstrap_servers

PROFILE_VARIABLE: Final = "COHORT_PROFILE"
_TOP_LEVEL: Final = ("profile", "profiles")
_SETTINGS: Final[Mapping[str, type]] = {"bootstrap": str, "json": bool}


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile sets; ``None`` for what it leaves to others."""

    bootstrap: str | None = None
    json: bool | None = None


def profiles_file(environment: Mapping[str, str]) -> Path:
    """Where the profiles are, whether the file exists or not."""
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "cohort" / "config.toml"


def chosen_profile(name: str | None, file: Path) -> Profile:
    """The profile called ``name``, or the one that the file chooses when ``name`` is ``None``; an empty one without a file.

    Raises ``CommandError`` for a profile that is not there and for a file that says something else than profiles.
    """
    content = _read(file)
    if content is None:
        if name is not None:
            raise CommandError(f"there is no profile {name!r}: {file} does not exist; create it with [profiles.{name}]")
        return Profile()
    profiles = _checked(content, file)
    if name is None and (name := content.get("profile")) is None:
        return Profile()
    if name not in profiles:
        close = get_close_matches(name, profiles, 1)
        there = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(sorted(profiles)) or 'none'}"
        raise CommandError(f"{file} has no profile {name!r}{there}")
    return profiles[name]


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandError(f"cannot read the profiles in {file}: {error}") from error


def _checked(content: Mapping[str, Any], file: Path) -> dict[str, Profile]:
    unknown = sorted(content.keys() - set(_TOP_LEVEL))
    if unknown:
        raise CommandError(f"{file}: {unknown[0]!r} is not known; there are {' and '.join(_TOP_LEVEL)}")
    if not isinstance(content.get("profile", ""), str):
        raise CommandError(f"{file}: 'profile' must be the name of a profile, not {content['profile']!r}")
    profiles = content.get("profiles", {})
    if not isinstance(profiles, dict):
        raise CommandError(f"{file}: 'profiles' must be tables such as [profiles.dev]")
    return {name: _profile(name, settings, file) for name, settings in profiles.items()}


def _profile(name: str, settings: object, file: Path) -> Profile:
    if not isinstance(settings, dict):
        raise CommandError(f"{file}: profile {name!r} must be a table such as [profiles.{name}]")
    for setting, value in settings.items():
        kind = _SETTINGS.get(setting)
        if kind is None:
            raise CommandError(f"{file}: profile {name!r} sets {setting!r}, but there are {' and '.join(_SETTINGS)}")
        if not isinstance(value, kind):
            raise CommandError(f"{file}: {setting!r} of profile {name!r} must be a {kind.__name__}, not {value!r}")
    profile = Profile(**settings)
    if profile.bootstrap is not None:
        try:
            parse_bootstrap_servers(profile.bootstrap)
        except ValueError as error:
            raise CommandError(f"{file}: 'bootstrap' of profile {name!r}: {error}") from error
    return profile
