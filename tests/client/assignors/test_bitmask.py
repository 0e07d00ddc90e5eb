"""Sets of numbers as bits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from client.assignors.bitmask import lowest_in, mask_of, numbers_in

numbers = st.frozensets(st.integers(0, 299))


@given(numbers)
def test_a_mask_holds_the_numbers_it_was_made_of(some: frozenset[int]) -> None:
    mask = mask_of(some, 300)
    assert mask == sum(1 << number for number in some)
    assert numbers_in(mask) == sorted(some)
    assert lowest_in(mask) == min(some, default=-1)


def test_of_nothing_it_is_empty() -> None:
    assert mask_of([], 0) == mask_of([], 5) == 0
