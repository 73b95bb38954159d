"""A node that a session came to asks the other one whether it has given the session away."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.errors import DaemonError, NotFoundError, StateError
from cellblock.operations.moving import GivenAway
from cellblock.service.daemon import moving


class Answers:
    """A link to the other node.

    Attributes:
        answers: What it answers, one after the other; the last one again and again.
    """

    def __init__(self, *answers: object) -> None:
        self.answers = [*answers]

    async def call(self, request: GivenAway) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "given"),
    [
        ([True], True),
        ([StateError("it continues there")], False),
        ([NotFoundError("given away before that daemon was killed")], True),
        ([DaemonError("it starts"), True], True),
        ([DaemonError("it starts"), StateError("it continues there")], False),
        ([DaemonError("the node is lost")], True),
    ],
)
async def test_one_of_two_nodes_continues_a_session(
    monkeypatch: pytest.MonkeyPatch, answers: list[object], given: bool
) -> None:
    monkeypatch.setattr(moving, "_AGAIN", 0.0)
    monkeypatch.setattr(moving, "_LOST", 0.1)
    assert await moving._is_given(Answers(*answers), "session", "hold") is given  # type: ignore[arg-type]
