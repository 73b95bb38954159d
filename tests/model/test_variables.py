"""Surveys of variables: what a worker sends is checked, and two of them are compared."""

from __future__ import annotations

import json

import pytest

from cellblock.errors import ProtocolError
from cellblock.model.variables import (
    MAX_SURVEY,
    ChangedVariable,
    Survey,
    Variable,
    VariableChanges,
    diff_variables,
    read_survey,
)


def survey(**variables: tuple[str, str | None]) -> Survey:
    return Survey(
        {name: Variable(name, kind) for name, (kind, _) in variables.items()},
        {name: told for name, (_, told) in variables.items()},
    )


def test_two_states_are_compared() -> None:
    before = survey(same=("int", "1"), other=("int", "1"), gone=("str", "1"), what=("Lock", None), kind=("int", None))
    after = survey(same=("int", "1"), other=("int", "2"), new=("str", "1"), what=("Lock", None), kind=("str", None))
    changes = diff_variables(before, after)
    assert changes == VariableChanges(
        new=[Variable("new", "str")],
        changed=[
            ChangedVariable(Variable("other", "int"), Variable("other", "int")),
            ChangedVariable(Variable("kind", "int"), Variable("kind", "str")),
        ],
        deleted=[Variable("gone", "str")],
        unknown=[Variable("what", "Lock")],
    )
    assert changes
    assert not diff_variables(survey(a=("int", "1")), survey(a=("int", "1")))
    assert VariableChanges.from_dict(json.loads(json.dumps(changes.to_dict()))) == changes


def test_what_is_not_a_survey_is_refused() -> None:
    cases: list[str] = [
        "",
        "[]",
        "{}",
        '{"variables":1,"left_out":0}',
        '{"variables":[],"left_out":"0"}',
        '{"variables":[["a","int",1,null,""]],"left_out":0}',
        '{"variables":[["a","int","1",null,"",null]],"left_out":0}',
        '{"variables":[["a","int",1,["2"],"",null]],"left_out":0}',
        '{"variables":[["a",{},1,null,"",null]],"left_out":0}',
        '{"variables":[[["a"],"int",1,null,"",null]],"left_out":0}',
        '{"variables":[["a","int",1,null,"",7]],"left_out":0}',
        "[" * 100_000,
        " " * MAX_SURVEY + "{}",
    ]
    for sent in cases:
        with pytest.raises(ProtocolError, match="survey"):
            read_survey(sent.encode())
