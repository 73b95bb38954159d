"""How requests are read."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from cellblock.errors import InvalidInputError
from cellblock.fronts.e2b.answers import as_json, as_text, parse
from cellblock.fronts.problems import Problem


class Wanted(BaseModel):
    """A message."""

    name: str = "default"


def test_a_body_is_what_a_model_wants_or_an_error_that_names_the_field() -> None:
    assert parse(b"", Wanted).name == "default"
    assert parse(b'{"name": "x", "more": 1}', Wanted).name == "x"
    for body, what in (
        (b'{"name": 1}', "^name: "),
        (b"[]", "^body: "),
        (b"{", "^the body is not"),
        (b"\xff", "^the body is not UTF-8"),
    ):
        with pytest.raises(InvalidInputError, match=what):
            parse(body, Wanted)


def test_problems_are_told_in_two_forms() -> None:
    problem = Problem(422, "invalid_input", "it is wrong")
    assert (as_text(problem).status_code, bytes(as_text(problem).body)) == (400, b"it is wrong")
    assert bytes(as_json(problem).body) == b'{"code": 400, "message": "it is wrong"}'
    assert as_json(Problem(404, "files", "gone")).status_code == 404
