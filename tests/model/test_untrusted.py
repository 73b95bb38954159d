"""JSON of strangers is counted before it is parsed, and must be what the standard says."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import InvalidInputError
from cellblock.model.untrusted import MAX_DEPTH, MAX_DIGITS, MAX_VALUES, JsonCounter, has_too_many_values, parse_json

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
    counter = JsonCounter()
    for start in range(0, len(text), size):
        counter.feed(text[start : start + size])
    found = counter.feed(b"")
    assert values(data) - 1 <= found <= 6 * values(data)
    assert found == JsonCounter().feed(text)


@given(VALUES)
def test_what_is_valid_is_parsed_exactly(data: object) -> None:
    assert parse_json(json.dumps(data, ensure_ascii=False).encode()) == parse_json(json.dumps(data)) == data


def test_many_values_are_too_many() -> None:
    for one in (b"[],", b"{},", b'"",', b"1,", b"[", b'{"":'):
        data = b"[" + one * (MAX_VALUES + 1)
        assert has_too_many_values(data)
        with pytest.raises(InvalidInputError, match=f"the body has more than {MAX_VALUES:,} values"):
            parse_json(data, what="the body")


def test_a_long_text_is_one_value() -> None:
    code = "x = [1, {2: 3}]; print('a', \"b\\n\")\n" * 100_000
    assert parse_json(json.dumps({"code": code}).encode()) == {"code": code}


ENCODED = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "latin-1", "utf-7"]


def test_only_utf_8_is_read() -> None:
    """Python's own function finds out the encoding, in which what is counted may be something else."""
    for encoding in ENCODED:
        with pytest.raises(InvalidInputError):
            parse_json(f'["Ģé+AOk-"{"," if encoding == "utf-7" else ",1"}]'.encode(encoding, "replace"))


def test_a_byte_order_mark_is_ignored_once() -> None:
    assert parse_json(b"\xef\xbb\xbf[1]") == parse_json("\ufeff[1]") == [1]
    with pytest.raises(InvalidInputError):
        parse_json(b"\xef\xbb\xbf\xef\xbb\xbf[1]")


WRONG = {
    "NaN": "[NaN]",
    "Infinity": "[-Infinity]",
    "a number without end": "[1e999]",
    "a key twice": '{"a": 1, "b": {"c": 1, "c": 2}}',
    "digits": "9" * (MAX_DIGITS + 1),
    "depth": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "depth of objects": '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
    "depth without end": "[" * 30_000,
    "a raw line feed": '"\n"',
    "nothing": "",
    "more": "[] []",
    "a NUL": "[1]\0",
}


def test_what_the_standard_does_not_have_is_refused() -> None:
    for text in WRONG.values():
        for data in (text, text.encode()):
            with pytest.raises(InvalidInputError, match="JSON"):
                parse_json(data)


def test_surrogates_in_bytes_are_not_utf_8_and_escaped_ones_remain() -> None:
    with pytest.raises(InvalidInputError, match="byte 1 is wrong"):
        parse_json(b'"\xed\xa0\x80"')
    assert parse_json(b'"\\ud800"') == "\ud800"


def test_what_python_writes_for_no_number_can_become_null() -> None:
    assert parse_json("[NaN, Infinity, -1e999, 1.5]", null_for_nan=True) == [None, None, None, 1.5]


def test_bytes_are_limited_and_the_message_says_so() -> None:
    with pytest.raises(InvalidInputError, match="a message has more than 10 bytes"):
        parse_json(b'"0123456789"', what="a message", most=10)


def largest(one: str, before: str = "[", after: str = "]", between: str = ",") -> bytes:
    """Return the largest JSON of this kind that is not refused for its values, up to 16 MiB."""

    def made(count: int) -> bytes:
        return (before + between.join([one] * count) + after).encode()

    counts = range(1, (1 << 24) // len(one + between))
    return made(counts[bisect_left(counts, True, key=lambda count: has_too_many_values(made(count))) - 1])


WORST: dict[str, Any] = {
    "integers": ("1",),
    "objects": ('{"a":1}',),
    "lists": ("[]",),
    "numbers": ("1.2345678901234567e-300",),
    "small numbers": ("5e-324",),
    "digits": ("9" * MAX_DIGITS,),
    "nesting": ("[" * 90 + "]" * 90,),
    "keys": ('"a"', "{", ":1}", ':1,"'),
    "escapes": ("\\n", '"', '"', ""),
    "surrogates": ("\\ud83d\\ude00", '"', '"', ""),
    "a text": ("a", '"', '"', ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", WORST.values(), ids=list(WORST))
def test_the_worst_that_is_not_refused_takes_a_moment(shape: tuple[str, ...]) -> None:
    data = largest(*shape)

    def seconds() -> float:
        begin = time.thread_time()
        try:
            parse_json(data)
        except InvalidInputError:
            pass  # this took its time, too
        return time.thread_time() - begin

    assert min(seconds() for _ in range(3)) < 0.2  # a quarter of it on an idle machine; seconds without limits
