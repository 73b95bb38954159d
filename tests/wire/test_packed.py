"""Data with bytes in it, packed and unpacked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import ProtocolError
from cellblock.wire.packed import Packed, pack, plain_json, unpack

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


@given(_data | st.just([b",[]]"]))
def test_data_that_is_nothing_but_json_is_there_as_json(data: object) -> None:
    text = plain_json(pack(data))
    if text is None:
        assert has_large(data)
    else:
        assert not has_large(data)
        assert json.loads(text) == data


def test_what_is_no_packed_data_is_not_taken_for_json() -> None:
    assert plain_json(Packed(b",[]]")) is None
    assert plain_json(Packed(b"")) is None


def has_large(data: object) -> bool:
    if isinstance(data, dict | list):
        return any(map(has_large, data.values() if isinstance(data, dict) else data))
    return isinstance(data, bytes) or (isinstance(data, str) and len(data) >= 16 * 1024)


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


def test_a_value_that_is_at_many_places_is_there_once() -> None:
    """The text of a large result is at four: each copy of it would hold up whoever packs, sends and reads it."""
    text, picture = "x" * 1_000_000, b"y" * 1_000_000
    data = {"text": text, "outputs": [{"text": text, "data": {"text/plain": text, "image/png": picture}}], "picture": picture}
    packed = pack(data)
    assert len(packed) < 2_001_000
    read = unpack(packed)
    assert read == data
    assert read["text"] is read["outputs"][0]["text"]


def test_what_an_earlier_version_has_packed_is_read() -> None:
    head = json.dumps([{"a": None}, [[["a"], True, 3]]]).encode()
    assert unpack(len(head).to_bytes(4) + head + b"abc") == {"a": "abc"}
