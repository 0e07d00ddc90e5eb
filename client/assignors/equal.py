"""Shares among members that may all hold the same: quotas."""

from __future__ import annotations

from collections.abc import Sequence


def quotas(partitions: int, owned: Sequence[int]) -> list[int]:
    """How many partitions each member gets, given how many it holds now.

    All get the same number, some one more where it does not divide. The one more goes to those that hold more than
    the common number already, so that no partition moves that need not; a state that is balanced already stays as it
    is, whoever has the one more (KAFKA-18688). Beyond that the first members get it.
    """
    common, more = divmod(partitions, len(owned))
    shares = [common] * len(owned)
    eager = [place for place, count in enumerate(owned) if count > common]
    if len(eager) < more:
        eager += [place for place, count in enumerate(owned) if count <= common]
    for place in eager[:more]:
        shares[place] += 1
    return shares
