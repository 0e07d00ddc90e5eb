"""Some thousands of damaged requests against a daemon, each judged; ``python -m tests.kafka.damage`` sends any number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from protocol.kafka.headers import RequestHeader, encode_request_header
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from tests.coordinator.kafka.wire import connected, request_frame
from tests.daemon_process import DaemonProcess
from tests.kafka.damage import GROWTH_BYTES, OPTIONS, Bystander, damage, must_be_flat
from tests.kafka.damaged_requests import Asked, Judging, Violation

REQUESTS = 4_000


async def test_damaged_requests_harm_nobody_else(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, *OPTIONS) as daemon:
        outcome = await damage(daemon, REQUESTS, seed=1)
    assert outcome.fates["answered"] > REQUESTS / 4
    assert outcome.fates["closed"] > REQUESTS / 10
    assert outcome.questions_beside > 1
    assert 0 < outcome.at_the_end <= outcome.after_a_third + GROWTH_BYTES


def test_memory_that_grows_would_be_seen() -> None:
    must_be_flat(100, 100 + GROWTH_BYTES)
    with pytest.raises(Violation, match="memory grew from 0 MB after a third to 34 MB"):
        must_be_flat(100, 101 + GROWTH_BYTES)


async def test_a_wrong_answer_to_the_bystander_would_be_seen(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path, *OPTIONS) as daemon:
        async with connected(daemon.kafka_address) as wire:
            bystander = Bystander(wire)
            await bystander.begin()
            await bystander.ask()
            bystander.asked += 1  # it takes the next offset for another than it is
            with pytest.raises(Violation, match="wrong answer"):
                await bystander.ask()


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (b"\0\0\0\x07" + b"\0" + bytes(4) + b"\0\0" + b"\0\0", "has bytes that its version does not"),
        (b"\0\0\0\x07" + b"\0" + bytes(4), "is none"),
        (b"\0\0\0\x08" + b"\0" + bytes(4) + b"\0\0", "no answer came"),
    ],
)
async def test_an_answer_that_is_none_would_be_seen(frame: bytes, what: str) -> None:
    header = RequestHeader(12, 4, 7, "c")
    judging = Judging([Asked(encode_request_header(header), header)], Counter())
    judging.data_received(len(frame).to_bytes(4) + frame)
    with pytest.raises(Violation, match=what):
        judging.over.result()


async def test_an_answer_of_its_kind_is_fine() -> None:
    payload = request_frame(HeartbeatRequest("g", 1, "m"), 4, 7)[4:]
    fates: Counter[str] = Counter()
    judging = Judging([Asked(payload, RequestHeader(12, 4, 7, "test"))], fates)
    judging.data_received(b"\0\0\0\x0c" + b"\0\0\0\x07" + b"\0" + bytes(4) + b"\0\x19" + b"\0")
    assert not judging.over.done()
    assert fates == {"answered": 1}
