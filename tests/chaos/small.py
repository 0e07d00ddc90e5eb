"""Small histories for tests, written as ledgers are: one member after the other, a few entries each."""

from __future__ import annotations

from typing import Any

from tests.chaos.history import History, Hit, Observation, Reset, Roll
from tests.chaos.ledger import Entry
from tests.chaos.member_reading import MemberReader
from tests.chaos.reading import read_producer

TP = "orders-0"


def at(t: float, event: str, **fields: Any) -> Entry:
    """One entry of a ledger."""
    return {"t": t, "e": event, **fields}


def assigned(t: float, generation: int, *tps: str) -> Entry:
    """The member owns ``tps`` from now on."""
    return at(t, "assigned", generation=generation, tps=tps or (TP,))


def revoked(t: float) -> Entry:
    """The member gives up its partition."""
    return at(t, "revoked", tps=(TP,))


def delivered(t: float, *offsets: int, values: tuple[str, ...] | None = None) -> Entry:
    """Records of the partition; the value at offset N is ``p0:N`` unless told otherwise."""
    return at(t, "delivered", tp=TP, offsets=offsets, values=values or tuple(f"p0:{offset}" for offset in offsets))


def began(t: float, offset: int) -> Entry:
    """The handler is called."""
    return at(t, "began", tp=TP, offset=offset, value=f"p0:{offset}")


def handled(t: float, offset: int) -> Entry:
    """The handler is about to return."""
    return at(t, "handled", tp=TP, offset=offset)


def cancelled(t: float, offset: int) -> Entry:
    """The handler ends without having done its work."""
    return at(t, "cancelled", tp=TP, offset=offset)


def worked(t: float, *offsets: int) -> tuple[Entry, ...]:
    """Records handled at once, one after the other."""
    return tuple(entry for offset in offsets for entry in (began(t, offset), handled(t, offset)))


def commit(t: float, number: int, offset: int) -> Entry:
    """The member asks for a commit."""
    return at(t, "commit", number=number, offsets={TP: offset})


def committed(t: float, number: int) -> Entry:
    """The member is told that it is safe."""
    return at(t, "committed", number=number)


class Story:
    """Builds a history. Without a word about it, ``p0`` sent and stored ``p0:0``, ``p0:1``, ... at these offsets."""

    def __init__(self, records: int = 4) -> None:
        self.history = History()
        self.produced: list[Entry] = []
        for sequence in range(records):
            self.produced.append(at(sequence, "send", sequence=sequence, topic="orders", value=f"p0:{sequence}"))
            self.produced.append(at(sequence + 0.1, "acknowledged", sequence=sequence, tp=TP, offset=sequence))
        self.history.log[TP] = {offset: f"p0:{offset}" for offset in range(records)}

    def member(
        self,
        name: str,
        *entries: Entry,
        killed: float | None = None,
        auto: bool = False,
        instance: str | None = None,
    ) -> Story:
        """One member of the group ``alpha``, by its ledger."""
        self.history.group_of[name] = "alpha"
        if instance is not None:
            self.history.instance_of[name] = instance
        if killed is not None:
            self.history.ended[name] = killed
        self.history.alive[name] = (0.0, 100.0)
        if auto:
            self.history.auto.add(name)
        MemberReader(self.history, name).read(list(entries))
        return self

    def stopped(self, name: str, start: float, end: float) -> Story:
        """The member slept."""
        self.history.stopped.setdefault(name, []).append((start, end))
        return self

    def fault(self, start: float, end: float) -> Story:
        """Requests could fail meanwhile."""
        self.history.hits.append(Hit("cut-off", start, end, "refused", True))
        return self

    def observed(self, t: float, offset: int | None) -> Story:
        """The daemon was asked what is committed."""
        offsets = {} if offset is None else {TP: offset}
        self.history.observations.append(Observation("alpha", t, t + 0.01, offsets))
        return self

    def once(self) -> Story:
        """The producer numbers its batches."""
        self.history.once.add("p0")
        return self

    def removed(self, name: str, t: float) -> Story:
        """An administrator took the member out."""
        self.history.removed.setdefault(name, []).append(t)
        return self

    def reset(self, start: float, end: float) -> Story:
        """An administrator changed what the group has committed."""
        self.history.resets.append(Reset("alpha", start, end))
        return self

    def rolled(self, before: int, after: int, *, longest: float = 1.0) -> Story:
        """Static members were restarted one after the other."""
        self.history.rolls.append(Roll("alpha", before, after, longest, "somebody joined"))
        return self

    def calm(self, t: float) -> Story:
        """All groups have settled."""
        self.history.calm = t
        return self

    def done(self) -> History:
        """The history."""
        read_producer(self.history, "p0", self.produced)
        self.history.alive["p0"] = (0.0, 100.0)
        return self.history


def healthy() -> Story:
    """Two members: the first reads two records and hands over in order, the second reads the rest."""
    return (
        Story()
        .member(
            "a1",
            *(assigned(10, 1), delivered(11, 0, 1), commit(11.1, 0, 2), committed(11.2, 0)),
            *(revoked(12), at(12.5, "assigned", generation=2, tps=()), at(90, "left")),
        )
        .member("a2", assigned(13, 2), delivered(14, 2, 3), commit(14.1, 0, 4), committed(14.2, 0), at(90, "left"))
        .observed(11.5, 2)
        .observed(15, 4)
    )
