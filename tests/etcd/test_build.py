"""The etcd that the tests run against: where it comes from, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.etcd import build
from tests.etcd.members import Members


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without etcd and without Go."""
    monkeypatch.delenv("COHORT_ETCD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_the_one_that_is_named_is_taken(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = script(nothing_here / "mine", "echo 'etcd Version: 3.5.18'")
    monkeypatch.setenv("COHORT_ETCD", str(named))
    assert build.find() == named


def test_one_that_is_named_and_too_old_is_refused_by_name(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = script(nothing_here / "mine", "echo 'etcd Version: 3.5.17'")
    monkeypatch.setenv("COHORT_ETCD", str(named))
    with pytest.raises(build.EtcdMissingError, match=r"\$COHORT_ETCD .*mine.* is not etcd 3\.5\.18 or newer"):
        build.find()


def test_the_one_in_path_is_taken_unless_it_is_too_old(nothing_here: Path) -> None:
    installed = script(nothing_here / "etcd", "echo 'etcd Version: 3.6.0'")
    assert build.find() == installed
    script(installed, "echo 'etcd Version: 3.4.23'")
    with pytest.raises(build.EtcdMissingError, match="none was built"):
        build.find()


@pytest.mark.parametrize(
    ("go", "seconds", "reason"),
    [
        ("echo 'dial tcp: no route to proxy.golang.org'; exit 1", 60, "could not build it: dial tcp: no route"),
        ("sleep 60", 1, "did not build it within 1 s"),
    ],
)
def test_a_build_that_fails_or_takes_too_long_is_a_reason_that_tests_can_tell(
    nothing_here: Path, monkeypatch: pytest.MonkeyPatch, go: str, seconds: int, reason: str
) -> None:
    script(nothing_here / "go", go)
    monkeypatch.setenv("PATH", f"{nothing_here}:/usr/bin:/bin")
    with pytest.raises(build.EtcdMissingError, match=reason):
        build.build(seconds)
    with pytest.raises(build.EtcdMissingError, match=reason):
        build.find()


def test_a_build_is_kept_and_found(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(nothing_here / "go", 'echo "$@" > "$5.arguments"; touch "$5"')
    monkeypatch.setenv("PATH", f"{nothing_here}:/usr/bin:/bin")
    path = build.build()
    assert build.find() == path
    assert path.is_relative_to(nothing_here / "cache")
    script(nothing_here / "go", "exit 1")
    assert build.build() == path


def test_three_members_agree_on_a_leader(three_members: Members) -> None:
    assert len(three_members.members) == 3
    assert len(three_members.followers()) == 2
