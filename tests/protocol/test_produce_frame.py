"""The frame that producers make in pieces is the one that any client would send."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import decode_message
from protocol.framing import UNCOPIED_BYTES, decode_request
from protocol.messages import ApiKey
from protocol.messages.records import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.produce_frame import encode_produce_request

PIECES = st.lists(st.binary(max_size=300), max_size=4)
PARTITIONS = st.lists(st.tuples(st.integers(0, 2**31 - 1), PIECES), max_size=3)
TOPICS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), PARTITIONS), max_size=3)
TRANSACTIONAL_IDS = st.none() | st.text(st.characters(codec="utf-8"), max_size=8)


@given(TOPICS, st.integers(0, 2**63 - 1), st.sampled_from([-1, 0, 1]), st.integers(1, 2**31 - 1), TRANSACTIONAL_IDS)
def test_a_frame_of_pieces_is_read_as_the_request_it_stands_for(
    topics: list[tuple[str, list[tuple[int, list[bytes]]]]],
    correlation_id: int,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
) -> None:
    pieces = encode_produce_request(correlation_id, "me", acks, timeout_ms, topics, transactional_id)
    assert len(pieces) == 1, "all that is in it is short"
    (data,) = pieces
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    frame = decode_request(data[4:])
    assert frame[:4] == (ApiKey.PRODUCE, 0, correlation_id, "me")
    whole = tuple(
        TopicProduceData(name, tuple(PartitionProduceData(index, b"".join(pieces)) for index, pieces in partitions))
        for name, partitions in topics
    )
    assert decode_message(ProduceRequest, frame.body) == ProduceRequest(transactional_id, acks, timeout_ms, whole)


def test_long_batches_are_not_copied_into_a_frame() -> None:
    long = bytes(UNCOPIED_BYTES)
    pieces = encode_produce_request(1, "me", -1, 1000, [("t", [(0, [b"head", long]), (1, [long])])])
    assert [piece is long for piece in pieces] == [False, True, False, True]


@given(st.lists(st.sampled_from([0, 1, 80, 300, UNCOPIED_BYTES - 1, UNCOPIED_BYTES, 100_000]), max_size=12))
def test_no_piece_is_empty_and_no_two_short_ones_are_neighbours(sizes: list[int]) -> None:
    """A loop of Python 3.12 never gets rid of an empty one, and each costs a little to be sent."""
    topics = [("t", [(index, [bytes(size)]) for index, size in enumerate(sizes)])]
    pieces = encode_produce_request(1, "me", -1, 1000, topics)
    assert all(pieces)
    short = [len(piece) < UNCOPIED_BYTES for piece in pieces]
    assert (True, True) not in set(pairwise(short))
    data = b"".join(pieces)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    request = decode_message(ProduceRequest, decode_request(data[4:]).body)
    assert [len(each.records) for each in request.topic_data[0].partition_data] == sizes


def test_a_long_batch_is_read_as_it_was() -> None:
    long = bytes(range(256)) * 300
    pieces = encode_produce_request(1, "me", -1, 1000, [("t", [(0, [b"head", long]), (1, [long])])])
    data = b"".join(pieces)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    request = decode_message(ProduceRequest, decode_request(data[4:]).body)
    assert [each.records for each in request.topic_data[0].partition_data] == [b"head" + long, long]
