"""What a failed query says in one line, out of the pages that Spark makes of it."""

from __future__ import annotations

import pytest

from client.spark import failure_reason

IN_A_SINK = """\
[STREAM_FAILED] Query [id = 3aecd1c0] terminated with exception: [PYTHON_EXCEPTION] Traceback (most recent call last):
  File "/site-packages/client/spark/tasks/writer.py", line 136, in _partitions_of
    count = self._counts[topic] = topology.partitions(topic)
                                  ^^^^^^^^^^^^^^^^^^^^^^^^^^
client.errors.UnknownTopicOrPartitionError: topic 'nope' does not exist; create it with: cohort topics create nope
finding topic 'nope' was tried 2 times within 30000 ms
700 records of this task were not stored
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 3aecd1c0, runId = 03f58b5f]
Current Available Offsets: {Python@559ca17e: {"$cohort": {"cluster": "4654", "v": 1}, "t": {"0": 100}}}
"""

IN_FOREACH_BATCH = """\
[STREAM_FAILED] Query [id = b7ea756d] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] Reason: Traceback:
  File "/site-packages/client/transport/metadata.py", line 71, in partitions
    raise UnknownTopicOrPartitionError(_missing(topic))
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/site-packages/client/transport/metadata.py", line 71, in partitions
    raise UnknownTopicOrPartitionError(_missing(topic))
client.errors.UnknownTopicOrPartitionError: topic 'counts' does not exist
 SQLSTATE: 39000 SQLSTATE: XXKST
"""

HIDDEN_BY_SPARK = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source initialize source: Traceback (most recent call last):
  File "/site-packages/client/spark/options.py", line 185, in finish
    raise OptionsError(self.faults)
client.spark.errors.OptionsError: options of format("cohort"): startingOffsets is 'x'; it must be earliest

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 295, in main
UnboundLocalError: cannot access local variable 'reader' where it is not associated with a value
 SQLSTATE: 38000
"""

OF_A_USER = """\
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/home/user/job.py", line 3, in parse
    return int(value)
ValueError: invalid literal for int() with base 10: 'x'
 SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            IN_A_SINK,
            "topic 'nope' does not exist; create it with: cohort topics create nope; finding topic 'nope' was tried 2 times "
            "within 30000 ms; 700 records of this task were not stored",
        ),
        (IN_FOREACH_BATCH, "topic 'counts' does not exist"),
        (HIDDEN_BY_SPARK, "options of format(\"cohort\"): startingOffsets is 'x'; it must be earliest"),
        (OF_A_USER, "ValueError: invalid literal for int() with base 10: 'x'"),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table cannot be found.\n'UnresolvedRelation [x]",
            "[TABLE_OR_VIEW_NOT_FOUND] The",
        ),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_is_one_line(text: str, reason: str) -> None:
    found = failure_reason(RuntimeError(text))
    assert found.startswith(reason)
    assert "\n" not in found
    assert len(found) < len(reason) + 30


def test_it_is_not_longer_than_two_thousand_characters() -> None:
    assert len(failure_reason(RuntimeError("client.spark.errors.DataLossError: " + "x" * 5000))) == 2000
