"""How peers' suites are judged: what fails has to be named with its reason, and what is named has to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kafka.suites import checkouts, crates, go_modules, kafka_tools
from tests.kafka.suites.__main__ import SUITES, report
from tests.kafka.suites.exceptions import NOT_RUN, SOMETIMES, judged, left_out, named, named_for
from tests.kafka.suites.suite import Case, MissingError

ONE_FAILED = (Case("a", "passed"), Case("b", "failed", "why"), Case("c", "skipped"))


def test_every_exception_belongs_to_a_suite_and_has_a_reason() -> None:
    for suite, cases in named().items():
        assert suite in SUITES
        for case, reason in cases.items():
            why = reason.removeprefix(SOMETIMES).removeprefix(NOT_RUN).strip()
            assert len(why) >= 15, f"{suite}: {case} needs a reason"
            assert "to do" not in reason.lower()


def test_what_is_not_run_is_named_and_left_out() -> None:
    for suite in SUITES:
        assert not [case for case, reason in named_for(suite).items() if reason.startswith(NOT_RUN)]
        assert {*named_for(suite), *left_out(suite)} == {*named().get(suite, {})}
    skipped = go_modules.pattern(left_out("kafka-go"))
    assert skipped == (
        "^TestReaderConsumerGroup$/^verify_offset_committed.*$|^TestReaderConsumerGroup$/^consumer_group_commits_on_close$"
    )


def test_a_failure_has_to_be_named() -> None:
    assert [case.name for case in judged(ONE_FAILED, {}).unexpected] == ["b"]
    assert judged(ONE_FAILED, {"b": "out of scope"}).unexpected == ()
    assert report(judged(ONE_FAILED, {}), complete=True) == 1
    assert report(judged(ONE_FAILED, {"b": "out of scope"}), complete=True) == 0


def test_what_is_named_has_to_fail() -> None:
    stale = judged(ONE_FAILED, {"a": "out of scope", "b": "out of scope"})
    assert stale.stale == ("a",)
    assert report(stale, complete=True) == 1
    assert report(stale, complete=False) == 0  # only some cases ran
    assert judged(ONE_FAILED, {"a": f"{SOMETIMES} it waits for a clock", "b*": "all of them"}).stale == ()


def test_a_parent_fails_with_a_subtest_that_is_named() -> None:
    cases = (Case("T", "failed"), Case("T/one", "failed"), Case("T/two", "passed"))
    assert judged(cases, {"T/one": "out of scope"}).unexpected == ()
    assert [case.name for case in judged(cases, {}).unexpected] == ["T", "T/one"]


def test_go_s_events_become_cases() -> None:
    events = [
        {"Action": "run", "Test": "A"},
        {"Action": "output", "Test": "A", "Output": "said\n"},
        {"Action": "fail", "Test": "A"},
        {"Action": "run", "Test": "B"},
        {"Action": "skip", "Test": "B"},
        {"Action": "run", "Test": "C"},
        {"Action": "output", "Output": "panic: test timed out"},
    ]
    found = list(go_modules._cases(json.dumps(event) for event in events))
    assert [(case.name, case.outcome) for case in found] == [("A", "failed"), ("B", "skipped"), ("C", "failed")]
    assert found[0].said == "said\n"
    assert "did not end" in found[2].said
    with pytest.raises(MissingError, match="did not start"):
        list(go_modules._cases(iter(["build failed"])))


def test_cargo_s_lines_become_cases() -> None:
    said = (
        "test one ... ok\ntest two - should panic ... ok\ntest three ... FAILED\ntest four ... ignored\n"
        "---- three stdout ----\nit broke\n\n\nfailures:\n    three\n\n     Running tests/other.rs\n---- other stdout ----\n"
    )
    found = list(crates._cases(said))
    assert [case.outcome for case in found] == ["passed", "passed", "failed", "skipped"]
    assert found[2].said.strip() == "it broke"
    with pytest.raises(MissingError, match="did not start"):
        list(crates._cases("error: no compiler"))


def test_kafka_s_tools_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("java", "kafka/bin/kafka-topics.sh"):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    libs = tmp_path / "kafka" / "libs"
    libs.mkdir()
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{tmp_path / 'kafka' / 'bin'}")
    assert kafka_tools.find().jars == libs
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "kafka"))
    assert kafka_tools.find().jars == libs
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(MissingError, match="where there is no directory libs; unset it, or name a Kafka's"):
        kafka_tools.find()
    monkeypatch.delenv("KAFKA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        MissingError, match=r"no Kafka by KAFKA_HOME, and no kafka-topics in PATH .* mvn is not in PATH"
    ):
        kafka_tools.find()


def test_what_pytest_says_of_a_failure_is_found() -> None:
    said = (
        "==== FAILURES ====\n____ TestIt.test_one[1.5] ____\n\n    a line\n_ _ _ _ _\nanother\n"
        "____ ERROR at setup of test_two ____\nno broker\n==== short test summary info ====\nFAILED t.py::test_one[1.5]\n"
    )
    told = checkouts._told(said)
    assert {name: text.split() for name, text in told.items()} == {
        "test_one[1.5]": ["a", "line", "_", "_", "_", "_", "_", "another"],
        "test_two": ["no", "broker"],
    }
