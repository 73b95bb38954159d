"""State machines of Hypothesis that do things to one session and compare it with a model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from cellblock import Checkpoint, Host, Session

T = TypeVar("T")
M = TypeVar("M", bound="SessionMachine")


class SessionMachine(RuleBasedStateMachine):
    """What such machines share. Each cell has a number.

    Attributes:
        place: A directory that is removed in the end.
        named: The checkpoints that the machine has made, each with what the model knows of it.
        session: The session, once the machine has made it.
    """

    runner: asyncio.Runner
    host: Host

    def __init__(self) -> None:
        super().__init__()
        self.numbers = count(1)
        self.directory = tempfile.TemporaryDirectory()
        self.place = Path(self.directory.name)
        self.named: list[tuple[Checkpoint, Any]] = []
        self.session: Session

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.run(self.session.close())
        for checkpoint, _ in self.named:
            self.run(checkpoint.drop())
        self.directory.cleanup()


@contextmanager
def hosted(kind: type[M], isolate: Literal["none", "native"] = "none") -> Iterator[type[M]]:
    """Give a machine a loop and a host, which its runs share."""
    with asyncio.Runner() as runner:
        host = Host(isolate=isolate)
        try:
            yield type("Machine", (kind,), {"runner": runner, "host": host})
        finally:
            runner.run(host.close())


def check(machine: type[SessionMachine], examples: int, steps: int) -> None:
    """Let a machine run a few times, with up to so many steps."""
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[*HealthCheck],
        database=None,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(machine, settings=limits)
