"""What is decided on is bytes, and nothing that is done to the objects they were made of changes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.errors import InvalidInputError
from cellblock.tools.approvals.call import Call

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON))
def test_arguments_are_the_same_after_freezing(arguments: dict[str, Any]) -> None:
    call = Call.freeze("tool", "s", "t", arguments)
    assert call.arguments == arguments
    shuffled = dict(reversed(arguments.items()))
    assert Call.freeze("tool", "s", "t", shuffled).payload == call.payload
    assert json.loads(call.payload) == arguments


def test_changing_arguments_changes_nothing() -> None:
    arguments = {"path": "/a", "more": [1]}
    call = Call.freeze("tool", "s", "t", arguments)
    arguments["path"] = "/b"
    call.arguments["path"] = "/c"
    assert call.arguments == {"path": "/a", "more": [1]}


def test_what_is_no_json_object_is_no_arguments() -> None:
    cases: list[Any] = [[1], "x", None, {1: 2}, {"a": {1, 2}}, {"a": float("nan")}, {"a": float("inf")}]
    for arguments in cases:
        with pytest.raises(InvalidInputError):
            Call.freeze("tool", "s", "t", arguments)


def test_a_lone_surrogate_survives() -> None:
    assert Call.freeze("tool", "s", "t", {"a": "\ud800"}).arguments == {"a": "\ud800"}
