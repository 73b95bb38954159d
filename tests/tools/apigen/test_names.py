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


def test_a_tool_gives_its_module_a_name() -> None:
    cases: list[tuple[str, str]] = [
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
        ("", "tool_e3b0c442"),
        ("日本", "tool_cf2abf0c"),
        ("café", "cafe_850f7dc4"),
        ("run", "run"),
    ]
    for tool, module in cases:
        assert names.module_names([tool]) == {tool: module}


def test_a_name_that_several_would_have_is_nobodys() -> None:
    assert names.module_names(["a-b", "a_b", "c"]) == {"a-b": "a_b_d44362d6", "a_b": "a_b_648fa9b3", "c": "c"}
    assert names.ambiguous_modules(["a-b", "c", "a_b"]) == {"a_b": ["a-b", "a_b"]}
    assert names.module_names(["a-b", "a_b", "a_b_d44362d6"])["a-b"] not in ("a_b", "a_b_d44362d6")


_TOOLS = st.lists(
    st.text(max_size=90) | st.sampled_from(["a-b", "a_b", "A_B", "a.b", "class", "class_", "é", "e", "查询", "删除"])
)


@given(_TOOLS, _TOOLS)
def test_no_list_of_tools_gives_a_name_to_another_tool(some: list[str], more: list[str]) -> None:
    old, new = names.module_names(some), names.module_names([*more, *some])
    owners = {module: tool for tool, module in new.items()}
    assert all(owners.get(module, tool) == tool for tool, module in old.items())
    fields, others = names.field_names(some, set()), names.field_names([*more, *some], set())
    assert all(others[argument] == field or field not in others.values() for argument, field in fields.items())


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


@given(st.text(max_size=90) | st.sampled_from(["params", "base model", "Any", "any", "1"]))
def test_classes_take_no_name_that_is_used(hint: str) -> None:
    name = names.class_name(hint)
    assert name.isidentifier()
    assert name.isascii()
    assert name not in {"Params", "Result", "Any", "ParamsModel", "Enum", "None"}


def test_a_server_has_the_name_of_a_package() -> None:
    for name in ("git", "brave_search", "a1", "match"):
        assert names.check_server_name(name) == name


def test_a_server_with_another_name_is_refused() -> None:
    cases: list[object] = ["", "a-b", "1a", "class", "None", "_x", "__pycache__", "../x", "a.b", "é", "x" * 65, "a\n", 7, None]
    for name in cases:
        with pytest.raises(InvalidInputError, match="server_name must name a Python package"):
            names.check_server_name(name)
