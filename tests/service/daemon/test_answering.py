"""Each operation has exactly one handler, which returns what the operation declares."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from typing import Any, get_args

import pytest

from cellblock.operations import OPERATIONS
from cellblock.operations.base import Request
from cellblock.operations.checkpoints import Undo
from cellblock.service.daemon import answering  # noqa: F401  # it loads all handlers
from cellblock.service.daemon.daemon_state import Server
from cellblock.service.daemon.handlers import HANDLERS, answers


def test_each_operation_has_exactly_one_handler() -> None:
    assert {*HANDLERS} == {*OPERATIONS.values()}
    assert len({handler.function for handler in HANDLERS.values()}) == len(HANDLERS)


def test_a_second_handler_of_an_operation_is_refused() -> None:
    with pytest.raises(TypeError, match=r"two functions answer 'undo': undo and .*another"):

        @answers(Undo)
        async def another(server: Server, request: Undo) -> Any: ...

    assert HANDLERS[Undo].function.__name__ == "undo"


@pytest.mark.slow
def test_the_daemon_does_not_start_if_an_operation_has_no_handler() -> None:
    code = """
from cellblock.operations.base import Request
class Forgotten(Request[bool], op="forgotten"):
    "Nobody answers it."
import cellblock.service.daemon.client_connection
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.endswith("TypeError: nothing answers 'forgotten': write a handler, with the decorator `answers`\n")


def declared(kind: type[Request[Any]]) -> str:
    """Return the type of an operation's answer as its declaration has it."""
    (answer,) = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]  # each is made from a generic class
    text = answer if isinstance(answer, str) else inspect.formatannotation(answer).replace("typing.", "")
    return re.sub(r"\b[a-z]+\.", "", text)  # handlers name classes without their module


def test_handlers_return_what_their_operations_declare() -> None:
    for kind in OPERATIONS.values():
        returned = HANDLERS[kind].function.__annotations__["return"]
        assert returned in (declared(kind), f"{declared(kind)} | Packed", f"AsyncGenerator[{declared(kind)}, None]"), kind.op
