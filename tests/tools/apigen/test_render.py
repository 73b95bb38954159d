"""Modules from schemas: whatever the schema is, the module parses, imports, types, can be called, and does nothing else."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellblock.tools.apigen.check import check_source
from cellblock.tools.apigen.package import write_package
from cellblock.tools.apigen.render import render, render_module
from cellblock.tools.calling.content import ToolSpec
from suite import first_quick

from .generated import check_types, importable
from .nasty import INJECTION, SCHEMAS


def source_of(schema: Any, output: Any = None, description: str = "") -> str:
    return render_module("tool", ToolSpec("tool", description, schema, output)).source


def module_of(schema: Any, output: Any = None, description: str = "") -> dict[str, Any]:
    """Execute a module: in tests that is safe enough."""
    import types

    module = types.ModuleType("generated")
    sys.modules["generated"] = module
    try:
        source = source_of(schema, output, description)
        source = re.sub(r"^from \. import (.*)$", r"from cellblock.tools.calling.typed import \1", source, flags=re.MULTILINE)
        source = source.replace(" call, twin", " twin")
        exec(compile(source, "generated.py", "exec"), module.__dict__)
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and issubclass(value, pydantic.BaseModel) and value.__module__ == "generated":
                value.model_rebuild()
                assert name == value.__name__
        return module.__dict__
    finally:
        del sys.modules["generated"]


def sent(schema: Any, **arguments: Any) -> Any:
    params = module_of(schema)["Params"](**arguments)
    return params.model_dump(mode="json", by_alias=True, exclude_unset=True)


@pytest.mark.parametrize("name", first_quick(SCHEMAS, 20))
def test_a_nasty_schema_gives_a_module_that_can_be_called(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, arguments = SCHEMAS[name]
    root = tmp_path / f"nasty_{name}"
    tools = [ToolSpec("typed", INJECTION, schema, {} if schema is None else schema), ToolSpec("untyped", "", schema)]
    assert write_package(root, "server", tools) == ["typed", "untyped"]
    with importable(root, monkeypatch) as runner:
        untyped = importlib.import_module(f"{root.name}.server.untyped")
        runner.answer = "text"
        assert untyped.run(untyped.Params(**arguments)) == "text"
        assert runner.calls == [("server", "untyped", arguments)]
        typed = importlib.import_module(f"{root.name}.server.typed")
        runner.answer = answer = {"root_array": ["x"], "root_string": "x"}.get(name, arguments)
        result = typed.run(typed.Params.model_validate(arguments))
        assert isinstance(result, typed.Result)
        assert result.model_dump(mode="json", by_alias=True, exclude_unset=True) == answer
    assert "could not be read safely" not in typed.run.__doc__
    assert not Path("/tmp/cellblock-owned").exists()


@pytest.mark.slow
def test_what_is_generated_type_checks(tmp_path: Path) -> None:
    root = tmp_path / "nasty_typed"
    tools = [ToolSpec(name, INJECTION, schema, schema) for name, (schema, _) in SCHEMAS.items()]
    write_package(root, "server", tools)
    check_types(root)


def test_the_check_finds_what_does_not_belong() -> None:
    cases: list[str] = [
        "import os",
        "from os import system",
        "from . import other",
        "from ._runner import x",
        "from typing import get_type_hints",
        "from pydantic import Field as call",
        "x = 1",
        "call('tool', {}, str)",
        "call('other', params, str, Params)",
        "call('tool', params, str, str)",
        "__all__ = [open('x')]",
        "run_async = twin(str)",
        "class A(Enum):\n    x = open('x')",
        "class A(ParamsModel, metaclass=str): x: int",
        "class A: pass",
        "class A(dict): pass",
        "def other(): return 1",
        "class A(ParamsModel):\n    x: (lambda: 1)() = 1",
        "class A(Exception): pass",
        "class A(ParamsModel, nullable=open('x')): x: int",
        "@twin\nclass A(ParamsModel):\n    x: int",
        "class A(ParamsModel):\n    x: int = open('x')",
        "class A(ParamsModel):\n    def f(self): ...",
        "class A(ParamsModel):\n    x: __import__('os')",
        "class A(ParamsModel):\n    x: str.__class__ = 1",
        "class A(ParamsModel):\n    x: int = Field(default_factory=lambda: 1)",
        "class A(ParamsModel):\n    x: int = Field(**{})",
        "def run(params): return eval('1')",
        "def run(params):\n    'x'\n    return call('other', params, str, Params)",
        "if True: pass",
        "print(1)",
        "f'{1}'",
    ]
    for line in cases:
        source = source_of({"type": "object"})
        check_source(source, "tool")
        with pytest.raises((ValueError, SyntaxError)):
            check_source(f"{source}\n{line}\n", "tool")


def test_a_module_that_fails_the_check_has_nothing_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(source: str, tool: str) -> None:
        if "injected" in source:
            raise ValueError("found")

    monkeypatch.setattr("cellblock.tools.apigen.render.check_source", check)
    module = render_module(
        "tool", ToolSpec("tool", "Words.", {"type": "object", "properties": {"injected": {}}}, {"type": "array"})
    )
    assert "injected" not in module.source
    assert "could not be read safely" in module.source
    assert "Words." in module.source


# fmt: off
KEYWORDS = (
    "type", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs", "required", "default", "not",
    "maxLength", "additionalProperties", "prefixItems", "pattern", "minimum", "if", "a", "b", "class",
)
# fmt: on
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["object", "#"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=5),
    max_leaves=25,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(json_values, json_values)
def test_any_json_is_a_schema_of_a_module_that_imports(schema: Any, output: Any) -> None:
    module = module_of(schema, output)
    assert issubclass(module["Params"], pydantic.BaseModel)


def test_what_was_not_given_is_not_sent_and_what_was_meant_to_be_null_is() -> None:
    schema = {
        "type": "object",
        "properties": {
            "from": {"type": ["string", "null"]},
            "depth": {"type": "integer", "default": 3},
            "size": {"type": "number"},
        },
    }
    assert sent(schema) == {}
    assert sent(schema, **{"from": None}) == {"from": None}
    assert sent(schema, from_="x", depth=3, size=2**53 + 1) == {"from": "x", "depth": 3, "size": 2**53 + 1}


def test_arguments_that_break_the_schema_are_refused() -> None:
    cases: list[tuple[Any, Any]] = [
        ({"type": "string", "minLength": 2}, "x"),
        ({"type": "string", "pattern": "^a"}, "b"),
        ({"type": "integer", "exclusiveMinimum": 0}, 0),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, 0),
        ({"type": "number", "multipleOf": 3}, 4),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 1}, [1, 2]),
        ({"enum": ["a", "b"]}, "c"),
        ({"const": 1}, 2),
        ({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, {}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"x": "y"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x"),
    ]
    for schema, wrong in cases:
        with pytest.raises(pydantic.ValidationError):
            sent({"type": "object", "properties": {"a": schema}, "required": ["a"]}, a=wrong)


def test_what_types_cannot_say_is_said_in_words() -> None:
    doc = module_of(SCHEMAS["recursive_json"][0])["run"].__doc__
    assert "Params allows more than the tool's schema, as it refers to itself" in doc
    assert module_of(SCHEMAS["recursive"][0])["run"].__doc__ is None


def test_descriptions_are_where_help_finds_them() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "Where it is."}}}
    module = module_of(schema, description="Read a file.\n\nAll of it.")
    assert module["run"].__doc__.startswith("Read a file.\n\n")
    assert "All of it." in module["run"].__doc__
    assert "path: Where it is." in module["Params"].__doc__


def test_a_signature_is_python_on_one_line() -> None:
    schema = {
        "type": "object",
        "properties": {
            "limit": {"type": "integer", "minimum": 1, "default": 5},
            "path": {"type": "string", "minLength": 1},
            "kind": {"enum": ["a", "b"]},
        },
        "required": ["path"],
    }
    (module,) = render([ToolSpec("read-file", "Read.", schema)])
    assert module.signature == "read_file(path: str, limit: int = 5, kind: Literal['a', 'b'] = None) -> str"
    (module,) = render([ToolSpec("x", "", SCHEMAS["gigantic"][0])])
    assert len(module.signature) < 500
    assert "\n" not in module.signature


def test_a_tool_that_is_listed_twice_is_taken_once() -> None:
    tools = [ToolSpec("a", "first", {}), ToolSpec("a", "second", {})]
    (module,) = render(tools)
    assert "first" in module.source
    json.dumps(module.signature)


SHAPES = {
    "type": "object",
    "properties": {
        "shape": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "r": {"type": "number"}},
                    "required": ["kind", "r"],
                    "title": kind,
                }
                for kind in ("circle", "square")
            ]
        }
    },
    "required": ["shape"],
}


def test_constants_are_sent_without_being_given() -> None:
    assert sent(SHAPES, shape={"r": 2}) == {"shape": {"kind": "circle", "r": 2}}
    assert sent(SHAPES, shape={"r": 2, "kind": "square"}) == {"shape": {"kind": "square", "r": 2}}
    with_default = {"type": "object", "properties": {"kind": {"const": "a", "default": "a"}, "sure": {"const": True}}}
    assert sent(with_default) == {"kind": "a"}, "what is optional and has no default is only sent if it is given"


def test_none_is_sent_only_if_the_tool_takes_null() -> None:
    schema = {
        "type": "object",
        "properties": {
            "head": {"type": "integer"},
            "tail": {"type": "integer", "default": 3},
            "after-all": {"type": "string"},
            "note": {"type": ["string", "null"]},
            "must": {"type": ["string", "null"]},
            "inner": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
        "required": ["must"],
    }
    given = {"head": None, "tail": None, "after_all": None, "note": None, "must": None, "inner": {"x": None}}
    assert sent(schema, **given) == {"note": None, "must": None, "inner": {}}
    assert sent(schema, must=None, **{"after-all": None}) == {"must": None}
    fields = module_of(schema)["Params"].model_fields
    assert fields["head"].annotation == int | None
    assert fields["tail"].annotation is int
    assert fields["must"].is_required()


def test_enumerations_are_classes_whose_values_can_be_given_as_well() -> None:
    listed = {"enum": ["stars", "best-match", "1d", "name"]}
    schema = {"type": "object", "properties": {"sort": {**listed, "default": "stars"}, "again": listed}}
    module = module_of(schema)
    assert [(member.name, member.value) for member in module["Sort"]] == [
        ("stars", "stars"),
        ("best_match", "best-match"),
        ("field_1d", "1d"),
        ("name_", "name"),
    ]
    assert sent(schema, sort=module["Sort"].best_match.value, again="1d") == {"sort": "best-match", "again": "1d"}
    params = module["Params"](sort=module["Sort"].name_)
    assert params.model_dump(mode="json", exclude_unset=True) == {"sort": "name"}
    assert "Again" not in module, "equal enumerations are one class"
    with pytest.raises(pydantic.ValidationError):
        module["Params"](sort="forks")
    (made,) = render([ToolSpec("find", "", schema)])
    assert "sort: Literal['stars', 'best-match', '1d', 'name'] = 'stars'" in made.signature


def test_equal_shapes_are_one_class() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}
    line = {"type": "object", "properties": {"start": point, "end": point}, "required": ["start"]}
    schema = {"type": "object", "properties": {"first": line, "second": line, "other": {"type": "array", "items": point}}}
    source = source_of(schema, schema)
    assert re.findall(r"^class (\w+)", source, re.MULTILINE) == [
        "Params",
        "First",
        "OtherItem",
        "Result",
        "ResultFirst",
        "ResultOtherItem",
    ]
    assert sent(schema, other=[{"x": 1, "y": 2}]) == {"other": [{"x": 1, "y": 2}]}


def test_classes_of_one_name_are_told_apart_by_what_they_are() -> None:
    def owner(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"user": {"type": "object", "properties": {name: {"type": "string"}}}}}

    source = source_of({"type": "object", "properties": {"a": owner("x"), "b": owner("y"), "c": owner("x")}})
    before = re.findall(r"^class (User\w*)", source, re.MULTILINE)
    more = source_of({"type": "object", "properties": {"z": owner("z"), "b": owner("y"), "a": owner("x")}})
    after = re.findall(r"^class (User\w*)", more, re.MULTILINE)
    assert len(before) == 2
    assert len(after) == 3
    assert set(before) < set(after)
    assert all(re.fullmatch(r"User_[0-9a-f]{8}", name) for name in after)
    assert "class User(" in source_of({"type": "object", "properties": {"a": owner("x"), "c": owner("x")}})


def test_members_of_a_union_are_named_by_their_constant() -> None:
    def operation(kind: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"op": {"const": kind}, "at": {"type": "integer"}}, "required": ["op", "at"]}

    items = {"oneOf": [operation("insert"), operation("delete-all")]}
    schema = {"type": "object", "properties": {"operations": {"type": "array", "items": items}}}
    assert "operations: list[OperationsItemInsert | OperationsItemDeleteAll] | None = None" in source_of(schema)
    assert sent(schema, operations=[{"op": "delete-all", "at": 1}]) == {"operations": [{"op": "delete-all", "at": 1}]}


def test_an_argument_never_becomes_another_one() -> None:
    text = {"type": "string"}
    before = {"type": "object", "properties": {"a-b": text}}
    after = {"type": "object", "properties": {"a-b": text, "a_b": text}}
    assert sent(before, a_b="x") == {"a-b": "x"}
    with pytest.raises(pydantic.ValidationError, match="a_b"):
        sent(after, a_b="x")
    assert sent(after, a_b_d44362d6="x", a_b_648fa9b3="y") == {"a-b": "x", "a_b": "y"}
    assert sent(after, **{"a-b": "x"}) == {"a-b": "x"}


def test_words_of_parts_reach_the_docstring() -> None:
    schema = {
        "type": "object",
        "properties": {
            "paths": {"type": "array", "items": {"type": "string", "description": "A path."}, "uniqueItems": True},
            "when": {"oneOf": [{"type": "string", "title": "A date"}, {"type": "integer", "description": "Seconds."}]},
            "depth": {"type": "integer", "default": 3, "description": "How deep."},
            "step": {"type": "number", "multipleOf": 0.5},
        },
        "required": ["depth"],
    }
    assert (inspect.getdoc(module_of(schema)["Params"]) or "").splitlines() == [
        "paths: (no duplicates) Each: A path.",
        "when: One of: A date; Seconds.",
        "depth: How deep. Default: 3",
        "step: (a multiple of 0.5)",
    ]


def test_forms_of_an_object_are_told_apart_by_their_titles() -> None:
    def form(title: str, **properties: Any) -> dict[str, Any]:
        return {"type": "object", "title": title, "properties": properties}

    round_one = form("A round one", r={"type": "number", "description": "In mm."})
    square = form("a square!", side={"type": "number"})
    shape = {"type": "object", "properties": {"shape": {"oneOf": [round_one, square]}}}
    module = module_of(shape)
    assert inspect.getdoc(module["ARoundOne"]) == "r: In mm."
    assert sent(shape, shape={"side": 1}) == {"shape": {"side": 1}}
    listed = {"type": "object", "properties": {"shapes": {"type": "array", "items": {"anyOf": [round_one, square]}}}}
    assert "shapes: list[ARoundOne | ASquare] | None = None" in source_of(listed)
    assert inspect.getdoc(module_of({"anyOf": [round_one, square]})["Params"]) == "One of: A round one; a square!\nr: In mm."
    values = {"type": "object", "additionalProperties": {"type": "string", "description": "Its value."}}
    assert inspect.getdoc(module_of({"type": "object", "properties": {"env": values}})["Params"]) == "env: Each: Its value."


def test_words_of_an_object_with_one_property_reach_its_class() -> None:
    inner = {
        "type": "object",
        "description": "What to find.",
        "properties": {"name": {"type": "string", "description": "A part."}},
    }
    schema = {"type": "object", "properties": {"filter": inner}, "required": ["filter"]}
    module = module_of(schema, schema)
    assert inspect.getdoc(module["Params"]) == "filter: What to find."
    assert (inspect.getdoc(module["Filter"]) or "").splitlines() == ["What to find.", "name: A part."]
    assert inspect.getdoc(module["Result"]) == "filter: What to find."


def test_forms_of_the_arguments_do_not_let_misspelt_ones_through() -> None:
    for word in ("oneOf", "anyOf"):
        schema = {
            "type": "object",
            "properties": {"path": {"type": "string"}, "url": {"type": "string"}},
            word: [{"required": ["path"]}, {"required": ["url"]}],
        }
        assert sent(schema, url="x") == {"url": "x"}
        with pytest.raises(pydantic.ValidationError, match="Extra inputs are not permitted"):
            sent(schema, urll="x")


def test_a_module_has_nothing_that_says_nothing() -> None:
    source = source_of({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}, None, "Read.")
    assert (
        source
        == """from __future__ import annotations

from . import ParamsModel, call, twin

__all__ = ['Params', 'run', 'run_async']


class Params(ParamsModel):
    path: str


def run(params: Params) -> str:
    \"\"\"Read.\"\"\"
    return call('tool', params, str, Params)


run_async = twin(run)
"""
    )


def test_arguments_may_be_a_dict_and_values_of_types_that_json_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when = {"type": "string", "format": "date-time"}
    schema = {
        "type": "object",
        "properties": {
            "since": when,
            "days": {"type": "array", "items": {"type": "string", "format": "date"}},
            "path": {"type": "string"},
            "count-all": {"type": "integer"},
            "inner": {"type": "object", "properties": {"at": when}},
        },
    }
    root = tmp_path / "dicts"
    write_package(root, "server", [ToolSpec("find", "", schema)])
    with importable(root, monkeypatch) as runner:
        find = importlib.import_module("dicts.server.find")
        find.run(
            {
                "since": datetime(2026, 1, 2, 3, tzinfo=UTC),
                "days": [date(2026, 1, 2)],
                "path": Path("a/b"),
                "count-all": np.int64(7),
                "inner": {"at": datetime(2026, 1, 2)},
            }
        )
        assert runner.calls == [
            (
                "server",
                "find",
                {
                    "since": "2026-01-02T03:00:00+00:00",
                    "days": ["2026-01-02"],
                    "path": "a/b",
                    "count-all": 7,
                    "inner": {"at": "2026-01-02T00:00:00"},
                },
            )
        ]
        with pytest.raises(pydantic.ValidationError):
            find.run({"paths": "a"})
        assert {name for name in find.__all__ if hasattr(find, name)} == {"Inner", "Params", "run", "run_async"}
