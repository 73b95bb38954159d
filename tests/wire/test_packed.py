"""Data with bytes in it, packed and unpacked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import ProtocolError
from cellblock.wire.packed import pack, unpack

_text = st.text(st.characters(exclude_categories=["Cs"]))
_large = st.sampled_from(["x" * 20_000, "ü" * 16_384])
_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _text | _large | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=20,
)


@given(_data)
def test_what_is_packed_comes_back(data: object) -> None:
    assert unpack(pack(data)) == data


@given(st.binary(max_size=200))
def test_what_is_damaged_is_an_error_of_its_own(data: bytes) -> None:
    try:
        unpack(data)
    except ProtocolError:
        pass


def test_what_is_cut_is_not_taken_for_whole() -> None:
    packed = pack({"picture": b"1234"})
    for end in range(len(packed)):
        with pytest.raises(ProtocolError):
            unpack(packed[:end])


def test_a_lone_surrogate_does_not_stop_a_result() -> None:
    assert unpack(pack(["\ud800", "\ud800" * 20_000])) == ["?", "?" * 20_000]
