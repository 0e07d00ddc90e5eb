"""Which hosts the page is asked by, and where changes come from."""

from __future__ import annotations

import pytest

from coordinator.web.guard import HostGuard, check_change
from coordinator.web.view import ViewError

SAME = {"Host": "127.0.0.1:7338", "Origin": "http://127.0.0.1:7338", "Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:7338", "127.0.0.1", "localhost:7338", "LOCALHOST", "[::1]:7338", "::1", "10.2.3.4:80"),
        *("broker-1:7338", "broker-1.example.:7338", "Pages.Example"),
    ],
)
def test_addresses_and_known_names_are_taken(host: str) -> None:
    HostGuard(("broker-1", "broker-1.example", " pages.example ", "")).check(host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example:7338", "", "127.0.0.1.evil.example", "localhost.evil.example:1", ":7338"),
        *("[::1].evil.example", "[127.0.0.1]evil.example", "localhost:8@evil.example", "fe80::1%evil.example"),
    ],
)
def test_a_name_that_is_not_known_is_refused_as_rebinding_would_bring_it(host: str) -> None:
    with pytest.raises(ViewError, match="--http-hosts") as refused:
        HostGuard(("broker-1", "")).check(host)
    assert refused.value.status == 421


def test_a_change_comes_from_the_page_itself() -> None:
    check_change(SAME, allowed=True)
    check_change({**SAME, "Sec-Fetch-Site": "same-origin"}, allowed=True)


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://127.0.0.1:7339"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": ""}, 415),
    ],
)
def test_a_change_that_another_page_asks_for_is_refused(changed: dict[str, str], status: int) -> None:
    with pytest.raises(ViewError) as refused:
        check_change({**SAME, **changed}, allowed=True)
    assert refused.value.status == status


def test_without_http_admin_nothing_is_changed() -> None:
    with pytest.raises(ViewError, match="--http-admin yes"):
        check_change(SAME, allowed=False)
