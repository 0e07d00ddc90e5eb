"""A run as a picture: members over time as rows, a colour for each set of owned partitions, faults marked above."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Final

from tests.chaos.history import UNKNOWN, History, Hit

_LEFT: Final = 70
_RIGHT: Final = 30
_ROW: Final = 24
_BAR: Final = 18
_LANE: Final = 15
_CURVE: Final = 60
_CHARACTER: Final = 5.6
"""Width of a character of the 10 px font, as far as it matters for labels that shall not overlap."""


@dataclass(frozen=True, slots=True)
class _Share:
    start: float
    end: float
    generation: int
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Scale:
    first: float
    last: float
    width: float

    def x(self, at: float) -> float:
        return round(
            _LEFT + (min(max(at, self.first), self.last) - self.first) * self.width / (self.last - self.first), 1
        )


def timeline(history: History, title: str) -> str:
    """The picture as SVG."""
    scale = _scale(history)
    lanes = _lanes(history.hits, scale)
    top = 56 + _LANE * (max(lanes, default=0) + 1)
    rows = [(group, name) for group in history.groups for name in _by_start(history, group)]
    bottom = top + _ROW * len(rows) + 14 * len(history.groups)
    height = bottom + _CURVE + 56
    width = scale.width + _LEFT + _RIGHT
    colours: dict[tuple[str, ...], str] = {}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" '
        'font-size="10">',
        '<defs><pattern id="asleep" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="3" height="6" fill="#222" fill-opacity="0.55"/></pattern></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        _text(_LEFT, 18, f"{title}: members and what they own; a colour is a set of partitions", size=14),
        _text(
            _LEFT,
            34,
            "o1-4 = orders 1 to 4, r = returns; #N = generation; light grey = owns nothing; dark stripes = SIGSTOP or "
            "blocked; x = killed; | = gone; red faults break requests",
        ),
    ]
    parts += _seconds(scale, top, bottom + _CURVE + 26)
    parts += _faults(history.hits, lanes, scale, bottom)
    y, previous = float(top), ""
    for group, name in rows:
        y += 14 if group != previous else 0
        if group != previous:
            parts.append(_text(6, y - 3, group, bold=True))
            previous = group
        parts += _row(history, name, scale, y, colours)
        y += _ROW
    parts += _curve(history, scale, bottom + 16)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _scale(history: History) -> _Scale:
    first = min((start for start, _ in history.alive.values()), default=0.0)
    last = max((end for _, end in history.alive.values() if end < UNKNOWN), default=first)
    last = max(last, *(hit.end for hit in history.hits), first + 1) if history.hits else max(last, first + 1)
    return _Scale(first, last, min(6000, max(1200, 11 * (last - first))))


def _by_start(history: History, group: str) -> list[str]:
    return sorted(
        (name for name in history.group_of if history.group_of[name] == group), key=lambda name: history.alive[name]
    )


def _lanes(hits: list[Hit], scale: _Scale) -> list[int]:
    """A lane for each fault's label, so that labels do not overlap."""
    free: list[float] = []
    lanes = [0] * len(hits)
    for index in sorted(range(len(hits)), key=lambda index: hits[index].start):
        x = scale.x(hits[index].start)
        lane = next((number for number, end in enumerate(free) if end <= x), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = max(x + len(_label(hits[index])) * _CHARACTER + 10, scale.x(hits[index].end) + 4)
        lanes[index] = lane
    return lanes


def _label(hit: Hit) -> str:
    target = hit.target if len(hit.target) <= 26 else hit.target[:25] + "…"
    return f"{hit.kind} {target}" if target != "daemon" else hit.kind


def _seconds(scale: _Scale, top: float, bottom: float) -> list[str]:
    parts = []
    for second in range(0, int(scale.last - scale.first) + 1, 10):
        x = scale.x(scale.first + second)
        parts.append(f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(_text(x - 6, bottom + 14, f"{second} s", colour="#666"))
    return parts


def _faults(hits: list[Hit], lanes: list[int], scale: _Scale, bottom: float) -> list[str]:
    parts = []
    for hit, lane in zip(hits, lanes, strict=True):
        x, end, y = scale.x(hit.start), scale.x(hit.end), 44 + _LANE * lane
        colour = "#c62828" if hit.breaks else "#1558b0"
        if hit.breaks:
            parts.append(
                f'<rect x="{x}" y="{y + 11}" width="{max(1.0, end - x):.1f}" height="{bottom - y - 11}" fill="{colour}" '
                'fill-opacity="0.07"/>'
            )
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="{bottom}" stroke="{colour}" stroke-dasharray="2 3"/>')
        parts.append(f'<rect x="{x}" y="{y + 11}" width="{max(2.0, end - x):.1f}" height="2" fill="{colour}"/>')
        parts.append(_text(x + 3, y + 9, _label(hit), colour=colour))
    return parts


def _row(history: History, name: str, scale: _Scale, y: float, colours: dict[tuple[str, ...], str]) -> list[str]:
    start, end = history.alive[name]
    x, right, middle = scale.x(start), scale.x(end), y + _BAR / 2
    parts = [
        _text(10, middle + 4, name),
        f'<rect x="{x}" y="{y}" width="{right - x:.1f}" height="{_BAR}" fill="#eee" stroke="#bbb"/>',
    ]
    for share in _shares(history, name, end):
        colour = colours.setdefault(share.partitions, f"hsl({len(colours) * 137.5 % 360:.0f} 62% 72%)")
        left, wide = scale.x(share.start), scale.x(share.end) - scale.x(share.start)
        what = f"{name} generation {share.generation}: {' '.join(share.partitions)}"
        parts.append(
            f'<rect x="{left}" y="{y}" width="{wide:.1f}" height="{_BAR}" fill="{colour}" stroke="#555" stroke-width="0.5">'
            f"<title>{escape(what)}</title></rect>"
        )
        label = f"#{share.generation} {_compact(share.partitions)}"
        fitting = next((text for text in (label, f"#{share.generation}") if len(text) * _CHARACTER + 4 <= wide), "")
        if fitting:
            parts.append(_text(left + 2, middle + 4, fitting))
    for asleep, awake in history.stopped.get(name, ()):
        left, wide = scale.x(asleep), scale.x(awake) - scale.x(asleep)
        parts.append(f'<rect x="{left}" y="{y}" width="{wide:.1f}" height="{_BAR}" fill="url(#asleep)"/>')
    killed = any(period.how == "killed" for period in history.periods if period.member == name)
    parts.append(
        _text(right + 1, middle + 4, "x" if killed else "|", colour="#c62828" if killed else "#333", bold=True)
    )
    return parts


def _shares(history: History, name: str, gone: float) -> list[_Share]:
    """What a member owned, partitions that came together as one."""
    mine = sorted(
        (period for period in history.periods if period.member == name),
        key=lambda period: (period.start, period.end, period.tp),
    )
    return [
        _Share(start, min(end, gone), generation, tuple(sorted((period.tp for period in together), key=_place)))
        for (start, end, generation), together in groupby(
            mine, key=lambda period: (period.start, period.end, period.generation)
        )
    ]


def _place(tp: str) -> tuple[str, int]:
    topic, _, partition = tp.rpartition("-")
    return topic, int(partition)


def _compact(partitions: tuple[str, ...]) -> str:
    """``o0-3 r1`` for orders 0 to 3 and returns 1."""
    parts = []
    for topic, places in groupby(map(_place, partitions), key=lambda place: place[0]):
        runs: list[list[int]] = []
        for _, number in places:
            if runs and number == runs[-1][-1] + 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        numbers = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
        parts.append(f"{topic[0]}{numbers}")
    return " ".join(parts)


def _curve(history: History, scale: _Scale, y: float) -> list[str]:
    """Acknowledged and delivered records a second, on one scale."""
    seconds = int(scale.last - scale.first) + 1
    acknowledged, delivered = [0] * (seconds + 1), [0] * (seconds + 1)
    for send in history.sends:
        if send.acknowledged:
            acknowledged[int(max(0.0, min(send.answered, scale.last) - scale.first))] += 1
    for period in history.periods:
        for at, _, _ in period.deliveries:
            delivered[int(max(0.0, min(at, scale.last) - scale.first))] += 1
    most = max(*acknowledged, *delivered, 1)
    parts = [
        _text(4, y + 10, "records a"),
        _text(4, y + 22, f"second (max {most})"),
        _text(4, y + 36, "acknowledged", colour="#2e7d32"),
        _text(4, y + 48, "delivered", colour="#6a1b9a"),
    ]
    for values, colour in ((acknowledged, "#2e7d32"), (delivered, "#6a1b9a")):
        points = " ".join(
            f"{scale.x(scale.first + second)},{y + _CURVE - _CURVE * value / most:.1f}"
            for second, value in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
    return parts


def _text(x: float, y: float, text: str, *, colour: str = "#111", size: int = 10, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}"{weight}>{escape(text)}</text>'
