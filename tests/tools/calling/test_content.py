"""Outcomes: they go anywhere as JSON, and come back as they were or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock import InvalidInputError
from cellblock.tools.calling.content import ToolImage, ToolOutcome, ToolResource

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
outcomes = st.builds(
    ToolOutcome,
    st.booleans(),
    st.text(),
    json_values,
    st.lists(st.builds(ToolImage, st.binary(), st.text())).map(tuple),
    st.lists(st.builds(ToolResource, st.text(), st.text(), st.text(), st.none() | st.text(), st.none() | st.binary())).map(
        tuple
    ),
)
EMPTY: dict[str, Any] = {"is_error": False, "text": "", "structured": None, "images": [], "resources": []}


@pytest.mark.slow
@given(outcomes)
def test_an_outcome_survives_json(outcome: ToolOutcome) -> None:
    assert ToolOutcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_what_is_no_outcome_is_refused() -> None:
    cases: list[dict[str, Any]] = [
        {"is_error": 1},
        {"text": None},
        {"images": {}},
        {"images": [3]},
        {"images": [{"data": "!", "mime_type": ""}]},
        {"images": [{"data": "aaaa"}]},
        {"resources": [{"uri": ""}]},
        {"resources": [{"uri": "", "mime_type": "", "name": "", "text": 3, "data": None}]},
    ]
    for change in cases:
        assert ToolOutcome.from_dict(EMPTY) == ToolOutcome(False, "")
        with pytest.raises(InvalidInputError, match="not the result of a tool"):
            ToolOutcome.from_dict(EMPTY | change)
