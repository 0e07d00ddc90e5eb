"""Decisions that are carried out in slices: what comes for the same group meanwhile waits behind the last of them.

A decision about ten thousand members is one decision, though it takes longer than other groups can wait. So its slices are
carried out in turns of the loop (see ``Effects.begin``), and it is not seen half done: requests, timers and closed
connections that are about the same thing are held back, and follow in the order they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from coordinator.runtime.effects import Effects, Rest

Work = Callable[[], object]

_HELD_PER_TURN: Final = 64
"""Of what was held back, so much follows in one turn of the loop."""


class _Decision:
    __slots__ = ("held", "slices")

    def __init__(self, slices: Iterator[Effects]) -> None:
        self.slices: Iterator[Effects] | None = slices
        self.held: deque[Work] = deque()


class UnfinishedDecisions:
    """The decisions of one core that are not carried out to the end, by what they are about.

    ``carry_out`` does what a slice says. ``in_turns`` calls what it is given in later turns of the loop, again and again
    while it returns True. ``on_fault`` gets what a slice raises; no further one is carried out then.
    """

    def __init__(
        self,
        carry_out: Callable[[Effects], object],
        in_turns: Callable[[str, Callable[[], bool]], object],
        on_fault: Callable[[Exception], object],
    ) -> None:
        self._carry_out = carry_out
        self._in_turns = in_turns
        self._on_fault = on_fault
        self.decisions: dict[str, _Decision] = {}
        """Those that there are; mostly none."""

    def __contains__(self, about: str) -> bool:
        return about in self.decisions

    def add(self, rest: Rest) -> None:
        """Carries out the rest of a decision, slice by slice."""
        about, slices = rest
        decision = self.decisions.get(about)
        if decision is not None:  # one that was held back has slices of its own
            assert decision.slices is None, f"two decisions about {about} at once"
            decision.slices = slices
        else:
            decision = self.decisions[about] = _Decision(slices)
            self._in_turns(about, partial(self._go_on, about, decision))

    def hold(self, about: str, work: Work) -> None:
        """Does ``work`` when the decision about this is carried out, and what was held back before."""
        self.decisions[about].held.append(work)

    def in_slices(self, about: str) -> bool:
        """Whether slices of a decision about this are still to be carried out."""
        decision = self.decisions.get(about)
        return decision is not None and decision.slices is not None

    def give_up(self) -> None:
        """Carries out nothing more, and does at once what was held back: requests are refused, or begin anew."""
        held = [work for decision in self.decisions.values() for work in decision.held]
        self.decisions.clear()
        for work in held:
            work()

    def _go_on(self, about: str, decision: _Decision) -> bool:
        """One turn; returns whether there is more to do."""
        if self.decisions.get(about) is not decision:
            return False  # given up meanwhile
        if decision.slices is not None:
            self._next_slice(decision, decision.slices)
        else:
            for _ in range(min(_HELD_PER_TURN, len(decision.held))):
                decision.held.popleft()()
                if decision.slices is not None or self.decisions.get(about) is not decision:
                    break
        if self.decisions.get(about) is not decision:
            return False
        if decision.slices is None and not decision.held:
            del self.decisions[about]
            return False
        return True

    def _next_slice(self, decision: _Decision, slices: Iterator[Effects]) -> None:
        try:
            effects = next(slices, None)
        except Exception as error:
            decision.slices = None
            self._on_fault(error)
            return
        if effects is None:
            decision.slices = None
        else:
            self._carry_out(effects)
