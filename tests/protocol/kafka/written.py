"""Batches of format 2 as other projects' encoders write them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import strategies as st

from protocol.columns import Headers

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of its own, while it loads
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

BUILDERS: Final[dict[str, Any]] = {"aiokafka": AiokafkaBuilder, "kafka-python": KafkaPythonBuilder}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class Record(NamedTuple):
    """A record as a producer has it; the timestamp in ms."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 1_700_000_000_000
    headers: Headers = ()


def written(
    records: Sequence[Record],
    writer: str = "aiokafka",
    codec: str = "none",
    producer: tuple[int, int, int] = (-1, -1, -1),
    *,
    transactional: bool = False,
) -> bytes:
    """A batch of these records, of a producer with this id, epoch and sequence, written by ``writer``."""
    builder = BUILDERS[writer](
        magic=2,
        compression_type=CODECS.index(codec),
        is_transactional=transactional,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=2**30,
    )
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


_BYTES = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=70), st.just(b"long" * 3000))

RECORDS = st.lists(
    st.builds(
        Record,
        _BYTES,
        _BYTES,
        st.integers(1_700_000_000_000 - 2**15, 1_700_000_000_000 + 2**15) | st.integers(0, 2**45),
        st.just(()) | st.lists(st.tuples(st.text(max_size=8), _BYTES), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=60,
)
"""Few enough for Hypothesis; around 24 another way of reading begins."""

every_codec_written = pytest.mark.parametrize(
    ("writer", "codec"),
    [*(("aiokafka", codec) for codec in CODECS), ("kafka-python", "none"), ("kafka-python", "gzip")],
)
"""kafka-python has the others from libraries that nothing else here needs."""

every_codec = pytest.mark.parametrize("codec", CODECS)
