"""Calls of operations, as their declarations say."""

from __future__ import annotations

import inspect

import pytest

import cellblock
from cellblock.errors import InvalidInputError
from cellblock.fronts.client import calls
from cellblock.fronts.client.async_client import AsyncClient
from cellblock.fronts.client.calls import Call
from cellblock.fronts.client.client import Client
from cellblock.operations import OPERATIONS, asking
from cellblock.operations.approvals import Decide, Pending
from cellblock.operations.async_base_client import AsyncBaseClient
from cellblock.operations.checkpoints import DropCheckpoint, Fork, Restore, Undo
from cellblock.operations.files import ListFiles, RemoveFile
from cellblock.operations.sessions import Complete, Destroy, List, Restart


def test_fields_are_in_the_path_in_the_query_or_in_the_body() -> None:
    assert calls.of(Undo("a b", 2)) == Call("POST", "/sessions/a%20b/undo", {"count": 2}, once=True)
    assert calls.of(List(refresh=True)) == Call("GET", "/kernels", query={"refresh": "true"})
    assert calls.of(ListFiles("a", "b/c", True)).query == {"path": "b/c", "recursive": "true"}
    assert calls.of(RemoveFile("a", "b/c d\n")).path == "/sessions/a/files/b/c%20d%0A"
    assert calls.of(Restart("a")) == Call("POST", "/kernels/a/restart")
    assert calls.of(Complete("a", 1), b"x.") == Call("POST", "/sessions/a/complete", {"code": "x.", "cursor": 1})


def test_the_clients_have_a_method_for_each_operation_with_a_route() -> None:
    names = [kind.__name__ for kind in OPERATIONS.values() if kind.route is not None]
    makers = {inspect.signature(make).return_annotation: made for made, make in inspect.getmembers(asking, inspect.isfunction)}
    source = inspect.getsource(AsyncBaseClient) + inspect.getsource(AsyncClient)
    assert [name for name in names if f"{makers.get(name, name)}(" not in source] == []


def test_both_clients_take_what_the_functions_take() -> None:
    programs = (f"{one}_process" for one in ("exec", "spawn", "read", "write", "signal", "resize", "stop"))
    for name in ("checkpoint", "checkpoints", "restore", "drop_checkpoint", "undo", "diff", "fork", "processes", *programs):
        expected = [*inspect.signature(getattr(cellblock, name)).parameters]
        for client in (Client, AsyncClient):
            assert [*inspect.signature(getattr(client, name)).parameters] == ["self", *expected]


async def test_seeds_of_branches_are_checked_before_anything_is_sent() -> None:
    async with AsyncClient("http://127.0.0.1:1") as client:  # where nobody answers
        with pytest.raises(InvalidInputError, match="a seed must be an integer of 64 bits"):
            await client.fork("one", ["left"], seeds=[2**63])


async def test_other_input_than_text_is_refused_before_anything_is_sent() -> None:
    async with AsyncClient("http://127.0.0.1:1") as client:
        with pytest.raises(InvalidInputError, match="input must be UTF-8 text for a gateway"):
            await client.exec_process("one", "cat", input=b"\xff")


def test_what_has_its_default_is_left_out() -> None:
    """The gateway has the same defaults; and an empty text can mean there that nothing was said."""
    assert calls.of(Undo("a")).body == {}
    assert calls.of(Fork("a", ("b",))).body == {"names": ("b",)}
    assert calls.of(Pending()) == Call("GET", "/approvals")


def test_the_gateway_says_itself_who_decides() -> None:
    assert calls.of(Decide(("a",), True, by="me")).body == {"ids": ("a",), "allow": True}


def test_what_must_not_be_repeated_is_asked_once() -> None:
    assert calls.of(DropCheckpoint("a", "b")).once
    assert not calls.of(Destroy("a")).once


def test_what_would_be_another_address_is_refused() -> None:
    for name in ("", ".", "..", "a/b"):
        with pytest.raises(InvalidInputError, match="cannot be part of an address: use the id of the checkpoint"):
            calls.of(Restore("a", name))
        with pytest.raises(InvalidInputError, match="cannot be part of an address: use the id of the session"):
            calls.of(Undo(name))


def test_answers_are_read_as_declared() -> None:
    assert calls.answer(Destroy("a"), {"destroyed": True}) is True
    changes = {"written": ["x"], "removed": [], "kept": [], "more": 0}
    assert calls.answer(Restore("a", "b"), {"changes": changes}) == {"changes": changes}
