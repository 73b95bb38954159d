"""Values that libraries give as JSON."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from cellblock.worker.json_values import encode_json, plain_json

PLAIN = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text() | strategies.floats(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
    max_leaves=20,
)


def refuse(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"type": "Point", "coordinates": [1.5, np.int64(2)]}, {"type": "Point", "coordinates": [1.5, 2]}),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        ([math.nan, math.inf, -math.inf, np.float64("nan")], [None] * 4),
        ({"a": {3}}, {"a": [3]}),
        ((number for number in range(3)), [0, 1, 2]),
        ({"a": range(2), "b": (1,)}, {"a": [0, 1], "b": [1]}),
        ({True: "a", np.int64(2): "b", None: "c", (3, 4): "d"}, {"true": "a", "2": "b", "null": "c", "(3, 4)": "d"}),
        (b"\x00\xff", "AP8="),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (object, str(object)),
    ],
)
def test_what_is_not_json_becomes_what_jupyter_sends(value: Any, wanted: Any) -> None:
    assert json.loads(encode_json(value), parse_constant=refuse) == wanted


@settings(max_examples=20)
@given(PLAIN)
def test_json_stays_as_it_is_but_for_numbers_that_json_has_not(value: Any) -> None:
    read = json.loads(encode_json(value), parse_constant=refuse)
    assert read == json.loads(json.dumps(value), parse_constant=lambda _: None)
    assert plain_json(read) == read


def test_what_contains_itself_comes_to_an_end() -> None:
    value: list[Any] = []
    value.append(value)
    assert b"[" in encode_json(value)
