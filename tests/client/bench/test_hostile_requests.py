"""The hostile client of ``cohort bench hostile_requests``: every kind of request, as large as the daemon takes."""

from __future__ import annotations

from client.bench.hostile_requests import MAKES, attacks
from protocol.framing import LENGTH_BYTES
from protocol.limits import least_elements, max_request_bytes, max_request_elements
from protocol.messages import REQUESTS, ApiKey

FIXED = {
    *(ApiKey.FIND_COORDINATOR, ApiKey.HEARTBEAT, ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID),
    *(ApiKey.JOIN_TRANSACTION, ApiKey.ABORT_TRANSACTION, ApiKey.DESCRIBE_CLUSTER, ApiKey.UNREGISTER_BROKER),
}
"""Requests without a list: nothing in them can be many."""


def test_every_kind_of_request_that_holds_a_list_is_there() -> None:
    assert {make(1).api_key for make in MAKES.values()} == set(REQUESTS) - FIXED


def test_requests_are_as_large_as_is_allowed_and_not_larger() -> None:
    for attack in attacks():
        key = MAKES["produce" if attack.kind == "produce_bytes" else attack.kind](1).api_key
        for frame in attack.frames:
            payload = frame[LENGTH_BYTES:]
            assert len(payload) <= max_request_bytes(key, 64 * 1024 * 1024)
            elements, most = least_elements(payload, 10**9), max_request_elements(key)
            assert elements <= most, attack.kind
            assert elements > 0.9 * most or len(payload) > 25_000_000, attack.kind
