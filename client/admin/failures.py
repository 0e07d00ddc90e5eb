"""Partial failure: every item of a call is tried, and one error names all that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Iterable, Mapping
from typing import Final, TypeVar

from client.errors import CohortError, ProtocolResponseError, error_for
from protocol.errors import ErrorCode

ItemT = TypeVar("ItemT", bound=Hashable)
ResultT = TypeVar("ResultT")

_TEXTS_SHOWN: Final = 20


def raise_failures(failures: Mapping[ItemT, CohortError]) -> None:
    """Raises nothing when there are no failures, else one error for all of them.

    It is of the first failure's class, its text names every failure (the first 20 of many), ``failures`` maps each item to
    its own error, and it is ``retriable`` when each of them is.
    """
    if not failures:
        return
    first = next(iter(failures.values()))
    prefix = f"{first.code.name}: " if isinstance(first, ProtocolResponseError) else ""
    others = (str(failure).removeprefix(prefix) for failure in list(failures.values())[1:])
    texts = list(dict.fromkeys([str(first), *others]))
    more = [f"and {len(texts) - _TEXTS_SHOWN} more"] if len(texts) > _TEXTS_SHOWN else []
    error = type(first)("; ".join(texts[:_TEXTS_SHOWN] + more))
    error.failures = dict(failures)
    error.retriable = all(failure.retriable for failure in failures.values())
    raise error from first


def raise_error_codes(results: Iterable[tuple[str, int, str]]) -> None:
    """Raises for those of ``(item, error code, message)`` whose code is not NONE, see ``raise_failures``."""
    raise_failures(
        {
            item: error_for(code, message or f"{item!r} was refused")
            for item, code, message in results
            if code != ErrorCode.NONE
        }
    )


async def all_or_failures(calls: Mapping[ItemT, Awaitable[ResultT]]) -> dict[ItemT, ResultT]:
    """The results by item, in order, once every call has ended. Raises as ``raise_failures`` does if any failed."""
    ended = await asyncio.gather(*calls.values(), return_exceptions=True)
    results: dict[ItemT, ResultT] = {}
    failures: dict[ItemT, CohortError] = {}
    for item, result in zip(calls, ended, strict=True):
        if isinstance(result, CohortError):
            failures[item] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            results[item] = result
    raise_failures(failures)
    return results
