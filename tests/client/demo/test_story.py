"""The end of the story: what is said and how the command ends, when all is well and when it is not."""

from __future__ import annotations

import io
import json

import pytest

from client.cli.failure import CommandError
from client.cli.output import Output
from client.demo.counting import Contribution, compare
from client.demo.files import FileCount
from client.demo.narrator import Narrator
from client.demo.story import Killed, conclude

KILLED = Killed("member-2", share=2, processed=1, uncommitted=1)
ONCE = [Contribution(0, 0, (("a.py", (1,)),)), Contribution(0, 1, (("a.py", (2,)),))]
AGAIN = [*ONCE, ONCE[0]]


def end(work: list[Contribution], *, as_json: bool) -> tuple[str, str | None]:
    """What is printed, and the failure if there is one."""
    stream = io.StringIO()
    output = Output(as_json=as_json, stream=stream)
    outcome = compare(work, {0: 2}, {"a.py": FileCount(lines=2, words=3)})
    try:
        assert conclude(Narrator(output, lambda: 0.0), output, outcome, KILLED, rebalances=4) == 0
    except CommandError as error:
        return stream.getvalue(), str(error)
    return stream.getvalue(), None


def test_when_all_is_well() -> None:
    text, failure = end(AGAIN, as_json=False)
    assert failure is None
    assert "Nothing was lost" in text
    assert "1  processed by member-2, not committed when it was killed" in text


def test_redeliveries_are_only_put_down_to_the_kill_if_they_come_from_it() -> None:
    text, _ = end([*AGAIN, ONCE[1]], as_json=False)
    assert "2  1 of them processed by member-2" in text


def test_a_loss_is_a_failure_and_is_not_called_anything_else() -> None:
    text, failure = end(ONCE[1:], as_json=False)
    assert failure is not None
    assert failure.startswith("1 records lost")
    assert "a.py" in failure
    assert "Nothing was lost" not in text


@pytest.mark.parametrize(("work", "lost"), [(ONCE, 0), (ONCE[1:], 1)])
def test_the_last_object_has_the_figures_either_way(work: list[Contribution], lost: int) -> None:
    result = json.loads(end(work, as_json=True)[0].splitlines()[-1])
    assert {"produced", "delivered", "redelivered", "lost", "rebalances", "seconds"} <= set(result)
    assert (result["produced"], result["delivered"], result["lost"]) == (2, 2 - lost, lost)
