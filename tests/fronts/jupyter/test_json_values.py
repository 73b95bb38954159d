"""Values of JSON are counted before it is parsed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.fronts.jupyter.json_values import MAX_VALUES, ValueCounter, has_too_many_values

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='"\\\\,[{:é\n', max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='"\\\\,[{', max_size=5), inner, max_size=5),
)


def values(data: object) -> int:
    if isinstance(data, dict):
        return 1 + sum(values(value) for value in data.values())
    return 1 + sum(map(values, data)) if isinstance(data, list) else 1


@given(VALUES, st.integers(1, 9))
def test_no_value_is_missed_and_what_strings_hold_does_not_count(data: object, size: int) -> None:
    text = json.dumps(data, ensure_ascii=False).encode()
    counter = ValueCounter()
    for start in range(0, len(text), size):
        counter.feed(text[start : start + size])
    found = counter.feed(b"")
    assert values(data) - 1 <= found <= 4 * values(data)
    assert found == ValueCounter().feed(text)


@pytest.mark.parametrize("one", [b"[],", b"{},", b'"",', b"1,", b"[", b'{"":'])
def test_many_values_are_too_many(one: bytes) -> None:
    assert has_too_many_values(b"[" + one * (MAX_VALUES + 1))


def test_a_long_text_is_one_value() -> None:
    code = "x = [1, {2: 3}]; print('a', \"b\\n\")\n" * 100_000
    assert not has_too_many_values(json.dumps({"code": code}).encode())
