"""From the ledgers of a run to its history."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.chaos import ledger
from tests.chaos.history import UNKNOWN, History, Hit, Observation, Reset, Roll, Send
from tests.chaos.ledger import Entry
from tests.chaos.member_reading import MemberReader

_NOWHERE: Final = 2**62
"""The offset of a record that was acknowledged without one and is not in the log."""


def read_history(directory: Path) -> History:
    """The history in a run's directory."""
    history = History()
    for entry in ledger.read(directory / "run.jsonl"):
        _read_run_entry(history, entry)
    for name in list(history.alive):
        entries = ledger.read(directory / f"{name}.jsonl")
        start, _ = history.alive[name]
        last = max((entry["t"] for entry in entries), default=start)
        if name in history.group_of:
            MemberReader(history, name).read(entries)
        else:
            read_producer(history, name, entries)
        history.alive[name] = (start, history.ended.get(name, last))
    return history


def _read_run_entry(history: History, entry: Entry) -> None:
    at: float = entry["t"]
    match entry["e"]:
        case "process":
            _read_process(history, entry)
        case "killed":
            history.ended[entry["name"]] = at
        case "stopped":
            history.stopped.setdefault(entry["name"], []).append((at, UNKNOWN))
        case "resumed":
            intervals = history.stopped[entry["name"]]
            intervals[-1] = (intervals[-1][0], at)
        case "removed":
            history.removed.setdefault(entry["name"], []).append(at)
        case "reset":
            history.resets.append(Reset(entry["group"], at))
        case "reset-done":
            history.resets[-1].end = at
        case "fault":
            history.hits.append(Hit(entry["kind"], entry["start"], at, entry["target"], entry["breaks"]))
        case "offsets":
            history.observations.append(Observation(entry["group"], entry["asked"], at, entry["offsets"]))
        case "unsettled":
            history.unsettled.append(f"{entry['group']}: {entry['text']}")
        case "calm":
            history.calm = at
        case "rolled":
            fields = (entry[name] for name in ("group", "before", "after", "longest", "reason"))
            history.rolls.append(Roll(*fields))
        case "crash":
            history.crashes.append(f"{entry['name']}: {entry['text']}")
        case "log":
            history.log[entry["tp"]] = dict(zip(entry["offsets"], entry["values"], strict=True))
        case _:
            return


def _read_process(history: History, entry: Entry) -> None:
    name = entry["name"]
    history.alive[name] = (entry["t"], UNKNOWN)
    if entry["group"] is not None:
        history.group_of[name] = entry["group"]
    if entry["instance"] is not None:
        history.instance_of[name] = entry["instance"]
    if entry["commits"] == "auto":
        history.auto.add(name)
    if entry["promise"] == "once":
        history.once.add(name)
    elif entry.get("client") == "confluent":
        history.unordered.add(name)


def read_producer(history: History, name: str, entries: list[Entry]) -> None:
    """Adds a producer's ledger."""
    by_sequence: dict[int, Send] = {}
    for entry in entries:
        match entry["e"]:
            case "send":
                send = Send(name, entry["sequence"], entry["value"], entry["t"])
                by_sequence[send.sequence] = send
            case "acknowledged":
                send, offset = by_sequence[entry["sequence"]], entry["offset"]
                if (
                    offset is None
                ):  # of a repetition that the daemon knows, librdkafka does not tell where the first one is
                    log = history.log.get(entry["tp"], {})
                    offset = next((place for place, value in log.items() if value == send.value), _NOWHERE)
                send.answered, send.tp, send.offset = entry["t"], entry["tp"], offset
            case "failed":
                send = by_sequence[entry["sequence"]]
                send.answered, send.error = entry["t"], entry["error"]
            case "error":
                history.errors.append((name, entry["error"], entry["text"]))
            case _:
                continue
    history.sends.extend(by_sequence.values())
