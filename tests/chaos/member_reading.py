"""A member's ledger, read: what it owned from when to when, what it was given and finished there, what it committed."""

from __future__ import annotations

from tests.chaos.history import Commit, History, Period
from tests.chaos.ledger import Entry


class MemberReader:
    """Goes through one ledger from the first entry to the last."""

    def __init__(self, history: History, name: str) -> None:
        self._history = history
        self._name = name
        self._group = history.group_of[name]
        self._auto = name in history.auto
        self._owned: dict[str, Period] = {}
        self._commits: dict[int, Commit] = {}
        self._in_hand: list[tuple[Period, int]] = []
        self._in_work: dict[tuple[str, int], Period] = {}
        self._keys_in_work: dict[tuple[str, int], str] = {}
        self._again: set[str] = set()

    def read(self, entries: list[Entry]) -> None:
        """Adds what the entries tell to the history."""
        history, name = self._history, self._name
        for entry in entries:
            self._read_ownership(entry)
            self._read_work(entry)
            self._read_commit(entry)
            match entry["e"]:
                case "blocking":
                    history.stopped.setdefault(name, []).append((entry["t"], entry["t"] + entry["seconds"]))
                case "fenced":
                    history.fenced[name] = (entry["t"], entry["text"])
                case "error":
                    history.errors.append((name, entry["error"], entry["text"]))
                case _:
                    continue
        if name in history.ended:
            self._end_all(history.ended[name], "killed")
        elif entries and entries[-1]["e"] == "left":
            history.ended[name] = entries[-1]["t"]
        history.commits.extend(self._commits.values())

    def _read_ownership(self, entry: Entry) -> None:
        at, what = entry["t"], entry["e"]
        if what in ("assigned", "revoked", "lost") and not entry.get("reason", "?"):
            self._history.reasonless.append(f"{self._name} was told {what} at {at:.3f} without a reason")
        match what:
            case "assigned":
                self._history.joined.setdefault(self._name, at)
                for tp in entry["tps"]:
                    if tp in self._owned:
                        self._outside(f"was given {tp} at {at:.3f}, which it had already")
                    self._owned[tp] = Period(self._group, self._name, tp, entry["generation"], at)
                    self._history.periods.append(self._owned[tp])
            case "revoked" | "lost":
                for tp in entry["tps"]:
                    if tp in self._owned:
                        _end(self._owned.pop(tp), at, what)
            case "left":
                self._end_all(at, "left")
            case _:
                return

    def _read_work(self, entry: Entry) -> None:
        at = entry["t"]
        match entry["e"]:
            case "delivered":
                self._delivered(at, entry["tp"], entry["offsets"], entry["values"])
            case "done":
                for period, offset in self._in_hand:
                    period.handled.append((at, offset))
                self._in_hand.clear()
            case "processing":  # what was not finished before an error comes again
                self._again = set(self._owned)
            case "began" if "key" in entry:
                self._began_by_key(at, entry["tp"], entry["offset"], entry["value"], entry["key"])
            case "began":
                self._began(at, entry["tp"], entry["offset"], entry["value"])
            case "handled":
                period, offset = self._ended(entry), entry["offset"]
                if self._owned.get(entry["tp"]) is not period:
                    gone = f"{period.how} at {period.end:.3f}"
                    self._outside(f"went on with {entry['tp']}@{offset} until {at:.3f}; it was {gone}")
                period.handled.append((at, offset))
                period.returned.append((at, offset))
            case "cancelled":
                period, offset = self._ended(entry), entry["offset"]
                if period.how == "revoked" and at > period.end:
                    self._outside(
                        f"gave up {entry['tp']}@{offset} at {at:.3f}, after it was revoked at {period.end:.3f}"
                    )
            case _:
                return

    def _delivered(self, at: float, tp: str, offsets: list[int], values: list[str]) -> None:
        period = self._owned.get(tp)
        if period is None:
            self._outside(f"was given {tp}@{offsets[0]} without owning it")
            return
        period.deliveries.extend((at, offset, value) for offset, value in zip(offsets, values, strict=True))
        if self._auto:
            self._in_hand.extend((period, offset) for offset in offsets)
        else:
            period.handled.extend((at, offset) for offset in offsets)

    def _began(self, at: float, tp: str, offset: int, value: str) -> None:
        period = self._owner(at, tp, offset)
        again, self._again = tp in self._again, self._again - {tp}
        if again and period.deliveries and period.deliveries[-1][1] == offset:
            period.deliveries.pop()
        period.deliveries.append((at, offset, value))
        self._in_work[tp, offset] = period

    def _began_by_key(self, at: float, tp: str, offset: int, value: str, key: str) -> None:
        period = self._owner(at, tp, offset)
        again, self._again = tp in self._again, self._again - {tp}
        if again or not period.runs:
            period.runs.append([])
        period.runs[-1].append((key, offset))
        period.deliveries.append((at, offset, value))
        same = [other for (where, other), its_key in self._keys_in_work.items() if (where, its_key) == (tp, key)]
        if same:
            self._outside(f"began {tp}@{offset} of key {key} at {at:.3f} while it was at work on {same}")
        self._in_work[tp, offset] = period
        self._keys_in_work[tp, offset] = key

    def _owner(self, at: float, tp: str, offset: int) -> Period:
        period = self._owned.get(tp)
        if period is None:
            self._outside(f"began to handle {tp}@{offset} at {at:.3f} without owning it")
            return Period(self._group, self._name, tp, -1, at, at, "never owned")
        return period

    def _ended(self, entry: Entry) -> Period:
        where = entry["tp"], entry["offset"]
        self._keys_in_work.pop(where, None)
        return self._in_work[where]

    def _read_commit(self, entry: Entry) -> None:
        match entry["e"]:
            case "commit":
                self._commits[entry["number"]] = Commit(self._group, self._name, entry["t"], entry["offsets"])
            case "committed":
                self._commits[entry["number"]].acknowledged = entry["t"]
            case "commit-failed":
                self._commits[entry["number"]].error = entry["error"]
            case _:
                return

    def _outside(self, text: str) -> None:
        self._history.outside.append(f"{self._name} {text}")

    def _end_all(self, at: float, how: str) -> None:
        for period in self._owned.values():
            _end(period, at, how)
        self._owned.clear()


def _end(period: Period, at: float, how: str) -> None:
    period.end, period.how = at, how
