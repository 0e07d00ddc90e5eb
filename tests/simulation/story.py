"""A history told for people: who did what and when, facts among the log lines."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import Erased, Event, Gone, History, Told, name_of


def told(history: History) -> tuple[Event, ...]:
    """All lines in order of time."""
    return tuple(sorted([*history.events, *_facts(history)], key=lambda event: event.at_s))


def _facts(history: History) -> Iterator[Event]:
    for value, ack in history.acknowledged.items():
        who = history.sent[value].producer
        yield Event(ack.at_s, who, f"{value.strip()!r} is acknowledged at {ack.offset} of {name_of(ack.partition)}")
    for record in history.handed_out:
        what = f"is handed {record.offset} of {name_of(record.partition)} ({record.value.strip()!r})"
        yield Event(record.at_s, record.consumer, f"{what} in generation {record.generation}")
    for commit in history.applied:
        if isinstance(commit, Erased):
            what = f"the offset of {name_of(commit.partition)} is erased"
        else:
            what = f"{commit.offset} of {name_of(commit.partition)} is committed"
        yield Event(commit.at_s, commit.group, what)
    for commit in history.commits:
        yield Event(commit.at_s, commit.group, f"a client learns of {commit.offset} of {name_of(commit.partition)}")
    for event in history.ownership:
        if isinstance(event, Told):
            share = " ".join(name_of(partition) for partition in event.share)
            got = f", its share is {share or 'nothing'}" if event.what == "sync" else ""
            yield Event(event.at_s, event.member, f"is told generation {event.generation} of {event.group}{got}")
        elif isinstance(event, Gone):
            yield Event(event.at_s, event.group, "is erased")
        elif event.member:
            yield Event(event.at_s, event.member, f"{event.how} ({event.group})")


def lines(events: tuple[Event, ...], width: int = 200) -> Iterator[str]:
    """The story as text, one line an event, repetitions counted."""
    last, times = "", 0
    for event in events:
        text = f"{event.at_s:10.3f}  {event.who}: {event.what}"
        text = text if len(text) <= width else text[: width - 3] + "..."
        if text == last:
            times += 1
            continue
        if times:
            yield f"{'':12}(and {times} times more)"
        yield text
        last, times = text, 0
