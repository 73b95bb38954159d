"""Names: importable, distinct, and the same every time."""

from __future__ import annotations

import keyword
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from cellblock import InvalidInputError
from cellblock.tools.apigen import names


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Nothing is started here, so that there is nothing to watch."""


@pytest.mark.parametrize(
    ("tool", "module"),
    [
        ("read_file", "read_file"),
        ("read-file", "read_file"),
        ("getUser", "getuser"),
        ("API-post-page", "api_post_page"),
        ("ns/read.file", "ns_read_file"),
        ("class", "class_"),
        ("match", "match_"),
        ("None", "none"),
        ("3d", "tool_3d"),
        ("__init__", "tool_init"),
        ("_runner", "tool_runner"),
        ("", "tool"),
        ("日本", "tool"),
        ("café", "cafe"),
        ("run", "run"),
    ],
)
def test_a_tool_gives_its_module_a_name(tool: str, module: str) -> None:
    assert names.module_names([tool]) == {tool: module}


def test_a_tool_keeps_its_name_whoever_is_listed_before_it() -> None:
    assert names.module_names(["a-b", "a_b"]) == {"a-b": "a_b_2", "a_b": "a_b"}
    assert names.module_names(["b", "B"]) == {"b": "b", "B": "b_2"}


@given(
    st.lists(st.text(max_size=90) | st.sampled_from(["a-b", "a_b", "A_B", "a_b_2", "class", "class_", "1", "_1", "é", "e"]))
)
def test_modules_are_importable_and_distinct_in_any_order(tools: list[str]) -> None:
    modules = names.module_names(tools)
    assert list(modules) == list(dict.fromkeys(tools))
    assert len({module.lower() for module in modules.values()}) == len(modules)
    for module in modules.values():
        assert module.isidentifier()
        assert module.isascii()
        assert len(module) < 80
        assert not keyword.iskeyword(module)
        assert not keyword.issoftkeyword(module)
        assert not module.startswith("_")
    shuffled = random.Random(1).sample(tools, len(tools))
    assert names.module_names(shuffled) == modules


@given(st.lists(st.text(max_size=90) | st.sampled_from([*dir(BaseModel), "from", "str", "Any", "Tree", "a-b", "a_b"])))
def test_fields_hide_nothing_of_pydantic_and_no_type(properties: list[str]) -> None:
    fields = names.field_names(properties, {"Tree", "Params"})
    assert len(set(fields.values())) == len(set(properties))
    for field in fields.values():
        assert field.isidentifier()
        assert not keyword.iskeyword(field)
        assert not field.startswith("_")
        assert field not in dir(BaseModel)
        assert field not in {"str", "int", "Any", "Tree", "Params", "Field"}


@given(st.lists(st.text(max_size=90) | st.sampled_from(["params", "base model", "Any", "any", "1"])))
def test_classes_are_distinct_and_take_no_name_that_is_used(hints: list[str]) -> None:
    taken: set[str] = set()
    for hint in hints:
        name = names.class_name(hint, taken)
        assert name.isidentifier()
        assert name.isascii()
        assert name not in taken | {"Params", "Result", "Any", "ParamsModel", "Enum", "None"}
        taken.add(name)


@pytest.mark.parametrize("name", ["git", "brave_search", "a1", "match"])
def test_a_server_has_the_name_of_a_package(name: str) -> None:
    assert names.check_server_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "a-b", "1a", "class", "None", "_x", "__pycache__", "../x", "a.b", "é", "x" * 65, "a\n", 7, None]
)
def test_a_server_with_another_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidInputError, match="server_name must name a Python package"):
        names.check_server_name(name)
