"""The groups of a run: what assignors their members have, whether members are static, how an upgrade goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

Assignors = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """``stages``: what a member's assignors may be, one entry for each stage of an upgrade.

    A ``static`` group's members have instance ids (KIP-345).
    """

    stages: tuple[tuple[Assignors, ...], ...]
    static: bool = False


_STAGES: Final[dict[str, tuple[tuple[Assignors, ...], ...]]] = {
    "eager": ((("range", "roundrobin"), ("roundrobin", "range"), ("range",)),),
    "sticky": ((("sticky",), ("sticky", "range")),),
    "cooperative": ((("cooperative-sticky",),),),
    # As KIP-429 has it: two rounds of restarts, and members of neighbouring stages in the group at once.
    "upgrade": ((("range",),), (("range", "cooperative-sticky"),), (("cooperative-sticky",),)),
}
KINDS: Final[dict[str, Kind]] = {
    **{name: Kind(stages) for name, stages in _STAGES.items()},
    **{f"{name}-static": Kind(stages, static=True) for name, stages in _STAGES.items()},
}


class ChaosGroup:
    """One group. ``turn`` is held by whoever needs its membership to change by nobody else."""

    def __init__(self, number: int, kind: str) -> None:
        self.letter = "abcdefgh"[number]
        self.id = f"{self.letter}-{kind}"
        self.kind = KINDS[kind]
        self.stage = 0
        self.turn = asyncio.Lock()
        self._direction = 1

    def assignors(self, random: Random) -> Assignors:
        """What a member that starts now may have."""
        return random.choice(self.kind.stages[self.stage])

    @property
    def can_upgrade(self) -> bool:
        """Whether there is another stage."""
        return len(self.kind.stages) > 1

    def upgrade(self) -> None:
        """Goes to the next stage: up to the last, then down to the first, and so on."""
        turns = (
            self._direction < 0 if self.stage == 0 else self._direction > 0 and self.stage + 1 == len(self.kind.stages)
        )
        self._direction *= -1 if turns else 1
        self.stage += self._direction

    def instance(self, taken: Sequence[object]) -> str | None:
        """The first instance id that nobody in ``taken`` has; None for a group whose members are not static."""
        if not self.kind.static:
            return None
        return next(name for name in (f"{self.letter}-pod-{n}" for n in range(len(taken) + 1)) if name not in taken)
