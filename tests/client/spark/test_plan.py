"""What was planned for a batch, as the checkpoint of a query says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client.spark.plan import BatchPlan, plan_of, query_of
from client.spark.positions import Positions
from protocol.subscription import TopicPartition

NOTES = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})


def line(**ends: int) -> str:
    """What a source of Cohort has in the file: ``in_0=5`` is where it ends in partition 0 of ``in``."""
    named = {name.rsplit("_", 1)[0]: int(name.rsplit("_", 1)[1]) for name in ends}
    offsets = {TopicPartition(topic, named[topic]): end for topic, end in zip(named, ends.values(), strict=True)}
    return json.dumps(Positions(offsets, dict.fromkeys(named, "id"), "cluster").to_json())


def checkpoint(directory: Path, *lines: str, batch: int = 7, notes: str = NOTES) -> str:
    (directory / "offsets").mkdir(parents=True, exist_ok=True)
    (directory / "metadata").write_text('{"id":"q"}')
    (directory / "offsets" / str(batch)).write_text("\n".join(["v1", notes, *lines]))
    return str(directory)


def planned(directory: Path, *lines: str, notes: str = NOTES) -> BatchPlan:
    plan = plan_of(checkpoint(directory, *lines, notes=notes), "q", 7)
    assert plan is not None
    return plan


def test_a_batch_is_told_by_the_offsets_of_all_its_sources_and_not_by_its_time(tmp_path: Path) -> None:
    one = planned(tmp_path, line(in_0=5), "42")
    assert one.text.startswith('{"in": {"0": 5}} 42 #')
    assert one.ends == {TopicPartition("in", 0): 5}
    later = NOTES.replace('"batchTimestampMs": 1', '"batchTimestampMs": 2')
    assert planned(tmp_path, line(in_0=5), "42", notes=later).is_that_of(one.text)
    for other in ((line(in_0=6), "42"), (line(in_0=5), "43"), (line(in_0=5), "-")):
        assert not planned(tmp_path, *other).is_that_of(one.text)


def test_files_are_told_by_the_log_of_their_source(tmp_path: Path) -> None:
    """Their offset is a number in it: a copy that has lost the log numbers other files alike."""
    log = tmp_path / "sources" / "1"
    log.mkdir(parents=True)
    offsets = "42", '{"logOffset":3}'
    (log / "3").write_text('v1\n{"path":"a"}')
    one = planned(tmp_path, *offsets)
    assert planned(tmp_path, *offsets).is_that_of(one.text)
    for name in ("3", "3.compact"):
        (log / "3").unlink(missing_ok=True)
        (log / name).write_text('v1\n{"path":"b"}')
        assert not planned(tmp_path, *offsets).is_that_of(one.text)


def test_ends_in_which_two_sources_differ_are_left_out(tmp_path: Path) -> None:
    plan = planned(tmp_path, line(a_0=5, b_0=1), line(a_0=6, b_0=1), line(a_0=5, c_0=2))
    assert plan.ends == {TopicPartition("b", 0): 1, TopicPartition("c", 0): 2}


def test_a_text_has_a_bound_and_tells_all_the_same(tmp_path: Path) -> None:
    wide = ["\u00e4" * 5000 + end for end in ("x", "y")]
    first, second = (planned(tmp_path, line) for line in wide)
    assert len(first.text.encode()) <= 1024
    assert not first.is_that_of(second.text)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_directories_of_this_machine_are_read_in_all_forms(tmp_path: Path, form: str) -> None:
    assert query_of(form.format(checkpoint(tmp_path, "1"))) == "q"
    assert plan_of(form.format(tmp_path), "q", 7) is not None


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    known = checkpoint(tmp_path, "1")
    for place in ("", "hdfs://host/checkpoint", "s3a://bucket/checkpoint", str(tmp_path / "other")):
        assert query_of(place) is None
        assert plan_of(place, "q", 7) is None
    assert plan_of(known, "another", 7) is None, "a directory of the same name on this machine"
    assert plan_of(known, None, 7) is None
    assert plan_of(known, "q", 8) is None
    (tmp_path / "offsets" / "7").write_text("")
    assert plan_of(known, "q", 7) is None
