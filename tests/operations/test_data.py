"""Answers of operations, as clients get them."""

from __future__ import annotations

from typing import get_args, get_origin

from cellblock.model import Completions, HistoryEntry
from cellblock.model.checkpoints import Undone
from cellblock.model.sessions import SessionRecord
from cellblock.operations import OPERATIONS
from cellblock.operations.checkpoints import Undo
from cellblock.operations.data import Data, answer_type, as_data, read_answer
from cellblock.operations.sessions import Complete, Destroy, History, List, Wipe


def test_each_operation_declares_the_type_of_its_answer() -> None:
    """Also those whose answer is named in a text."""
    for kind in OPERATIONS.values():
        answer = answer_type(kind)
        assert not isinstance(answer, str)
        data = answer if get_origin(answer) is Data else get_args(answer)[0] if get_origin(answer) is list else None
        if get_origin(data) is Data:
            assert get_args(data)[0].__module__.startswith("cellblock.model")


def test_answers_become_what_they_declare() -> None:
    undone = Undone([HistoryEntry("1", "success", 1)], 0)
    record = SessionRecord("a", "b", "c", "d")
    assert read_answer(Undo, as_data(undone)) == undone
    assert read_answer(List, [as_data(record)]) == [record]
    assert read_answer(Complete, as_data(Completions(["a"], 0, 1))) == Completions(["a"], 0, 1)
    assert read_answer(History, [{"code": "1", "status": "success", "execution_count": 1}]) == [
        HistoryEntry("1", "success", 1)
    ]
    assert read_answer(Destroy, True) is True
    assert read_answer(Wipe, ["a"]) == ["a"]
