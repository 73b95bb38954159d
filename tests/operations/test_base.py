"""The declarations of operations: what they look like belongs to the protocol's number."""

from __future__ import annotations

import dataclasses
import hashlib
import pkgutil
import subprocess
import sys
import typing
from typing import Any

import pytest

from cellblock import operations
from cellblock.operations.base import PROTOCOL, Request
from cellblock.operations.executions import Submit
from cellblock.operations.sessions import Create, Interrupt, Status
from cellblock.service.named import json_options

SHAPES = {4: "757e056a7290", 5: "e7614f4cf4e6", 6: "6821b6cab90e", 7: "561058c58de2"}
"""For each number of the protocol, a digest of what requests have and which options sessions take"""


def fields(kind: type[Request[Any]]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)  # type: ignore[arg-type]  # it is a dataclass


def default(field: dataclasses.Field[object]) -> str:
    return "" if field.default is dataclasses.MISSING else f" = {field.default!r}"


def without_limits(kind: type[Request[Any]], field: dataclasses.Field[Any]) -> str:
    """Return the type of a field without what HTTP takes for it, which is no part of the daemon's protocol."""
    if "Annotated" not in str(field.type) and not str(field.type).startswith("_"):
        return str(field.type)
    hint = typing.get_type_hints(kind)[field.name]
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def shapes() -> str:
    """Return a digest of all requests: their names and fields, with types and defaults, and the options of sessions."""
    lines = [
        f"{name}: " + ", ".join(f"{field.name}: {without_limits(kind, field)}{default(field)}" for field in fields(kind))
        for name, kind in operations.OPERATIONS.items()
    ]
    lines.append("options: " + ", ".join(sorted(json_options._SESSION | json_options._SERVICES | json_options._NAMED)))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:12]


def test_whoever_changes_a_request_or_an_option_changes_the_number_of_the_protocol() -> None:
    """Otherwise a client and a daemon of different versions talk to each other, and misunderstand."""
    newest = max(SHAPES)
    assert newest == PROTOCOL
    wrong = f"requests or options have changed: raise PROTOCOL, and write the digest here, if version {newest} was released"
    assert shapes() == SHAPES[newest], wrong


def test_the_package_loads_every_module_that_declares_operations() -> None:
    modules = {module.name for module in pkgutil.iter_modules(operations.__path__)}
    others = {"asking", "async_base_client", "base", "base_client", "data", "file_parts"}
    script = "import sys, cellblock.operations; print(*(name for name in sys.modules if '.operations.' in name))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert modules - others == {name.rpartition(".")[2] for name in loaded} - others


def test_a_name_belongs_to_one_operation() -> None:
    with pytest.raises(TypeError, match="two operations have the name 'status': Status and Another"):

        class Another(Request[bool], op="status"):
            """It takes a name that there is."""

    assert operations.OPERATIONS["status"] is Status


def test_an_operation_has_a_docstring() -> None:
    with pytest.raises(TypeError, match="the operation 'silent' needs a docstring"):

        class Silent(Request[bool], op="silent"):
            pass

    assert "silent" not in operations.OPERATIONS


def test_operations_can_be_imported_without_docstrings() -> None:
    """``python -OO`` takes them away."""
    subprocess.run([sys.executable, "-OO", "-c", "import cellblock.operations"], check=True)


def test_a_request_is_repeated_only_if_twice_is_the_same_as_once() -> None:
    cases: list[tuple[Request[Any], bool]] = [
        (Status("a"), True),
        (Create("a"), True),
        (Create("a", fresh=True), False),
        (Submit("a"), False),
        (Submit("a", key="k"), True),
        (Interrupt("a"), False),
        (Interrupt("a", key="k"), True),
    ]
    for request_, may in cases:
        assert request_.may_repeat is may


def test_an_operation_cannot_be_repeated_unless_it_says_so() -> None:
    class Careful(Request[bool], op="careful"):
        """Says nothing about it."""

    try:
        assert not Careful().may_repeat
    finally:
        del operations.OPERATIONS["careful"]
