"""Makes sure that ``client``, ``coordinator`` and ``protocol`` are Cohort's own and not modules of the program.

These names are common: a program with a ``client.py`` beside it would get that one, because Python looks into the program's
directory first, and fail with ``'client' is not a package``. The error raised here names the file and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

NAMES: Final = ("protocol", "client", "coordinator")

_HERE: Final = Path(__file__).resolve().parent
_ROOTS: Final = (_HERE.parent, _HERE.parents[2])
"""Where our packages lie: beside this one when it is installed, two folders up in a checkout."""


class ForeignModuleError(ImportError):
    """A module of the program has the name of a package that ``aiocohort`` needs; ``path`` is its file."""


def require_own_packages(names: Sequence[str] = NAMES) -> None:
    """Raises ``ForeignModuleError`` when Python finds another module under one of ``names`` than the one of Cohort."""
    for name in names:
        try:
            spec = find_spec(name)
        except ValueError:  # a module without a spec, such as a stand-in of a test, was put into sys.modules
            spec = None
        found = _files(spec)
        if not any((root / name).resolve() in found for root in _ROOTS):
            raise _foreign(name, found)


def _files(spec: ModuleSpec | None) -> list[Path]:
    if spec is None:
        return []
    places = spec.submodule_search_locations or ([spec.origin] if spec.origin else [])
    return [Path(place).resolve() for place in places]


def _foreign(name: str, found: Sequence[Path]) -> ForeignModuleError:
    if not found:
        return ForeignModuleError(
            f"aiocohort needs its package {name!r}, and Python finds none: the installation is damaged. "
            "Install it again: pip install --force-reinstall aiocohort",
            name=name,
        )
    return ForeignModuleError(
        f"aiocohort needs its package {name!r}, but Python finds {found[0]} first, a module of this program with the same "
        f"name. Rename it, or start the program from another directory (python -P leaves the program's directory out)",
        name=name,
        path=str(found[0]),
    )
