"""Bytes of our codec are those of two others, in every version of every message, and are read alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.kafka.decoding import decode
from protocol.kafka.encoding import encode
from protocol.kafka.schema import Message
from tests.protocol.kafka.kinds import KINDS
from tests.protocol.kafka.oracles import ORACLES, UNKNOWN_TO_THEM, as_ours
from tests.protocol.kafka.values import as_version, instances, versions_of


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_bytes_are_those_of_other_codecs(kind: type[Message], data: st.DataObject) -> None:
    drawn = data.draw(instances(kind))
    for version in versions_of(kind):
        message = as_version(drawn, version)
        ours = b"".join(encode(message, version))
        assert decode(kind, version, ours) == message
        if (kind.__name__, version) in UNKNOWN_TO_THEM:
            continue
        for name, oracle in ORACLES.items():
            theirs: Any = oracle.decode(kind, version, ours)
            assert as_ours(kind, version, theirs) == message, (name, version)
            assert oracle.encode(kind, version, theirs) == ours, (name, version)
