"""Which leaders take what is produced to them, and which have not taken anything for a while (KIP-794)."""

from __future__ import annotations

from client.topology import Address


class LeaderPace:
    """Notes of each leader when something was ready to be sent to it, and when something went.

    ``timeout_s`` is for how long, in seconds, nothing may have gone to a leader while something was ready; 0 never minds.
    """

    __slots__ = ("_ready_and_went", "_timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._ready_and_went: dict[Address, tuple[float, float]] = {}

    @property
    def matters(self) -> bool:
        """Whether anybody asks."""
        return self._timeout_s > 0

    def went(self, leader: Address, now: float) -> None:
        """Something is sent to it."""
        self._ready_and_went[leader] = (now, now)

    def held_up(self, leader: Address, now: float) -> None:
        """Something is ready for it, and has to wait for what was sent before."""
        self._ready_and_went[leader] = (now, self._ready_and_went.get(leader, (now, now))[1])

    def is_slow(self, leader: Address | None) -> bool:
        """Whether nothing has gone to it for longer than the timeout. Who leads nothing is not slow."""
        ready, went = self._ready_and_went.get(leader, (0.0, 0.0)) if leader is not None else (0.0, 0.0)
        return 0 < self._timeout_s < ready - went
