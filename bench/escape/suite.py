"""The attacks of the benchmark, and the programs that they become."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.escape.world import World

Given = dict[str, Any]
Function = Callable[[Given], object]
Proof = Callable[[World], bool]
ATTACKS: dict[str, Attack] = {}


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack. That it fails is expected of every sandbox.

    Attributes:
        name: Its name.
        title: What the code wants.
        part: What it is about.
        source: Where such an escape is described.
        function: What makes it.
        secret: The secret of the world that the evidence must contain; None if it is not about reading.
        proof: Says on the host whether it succeeded; None if the program's own verdict counts.
        sessions: In how many sessions it runs; with several, it has succeeded if all evidence is the same.
        environment: Variables of the process that starts the sandbox, in addition.
        reaches: Whether it only tries whether code reaches an interface, which is no escape by itself.
    """

    name: str
    title: str
    part: str
    source: str
    function: Function
    secret: str | None = None
    proof: Proof | None = None
    sessions: int = 1
    environment: Callable[[World], dict[str, str]] | None = None
    reaches: bool = False


def attack(title: str, source: str, **how: Any) -> Callable[[Function], Function]:
    """Add a function to the suite. Its source is all that runs in the sandbox, beside the prelude."""

    def add(function: Function) -> Function:
        part = function.__module__.rpartition(".")[2]
        ATTACKS[function.__name__] = Attack(function.__name__, title, part, source, function, **how)
        return function

    return add


def planted(*paths: str) -> Proof:
    """Return a proof: one of these files of the world has the mark."""
    return lambda world: any(world.has_mark(path) for path in paths)


def program(attacking: Attack, given: Given) -> str:
    """Return an attack as a program that needs nothing but Python's standard library."""
    prelude = (Path(__file__).parent / "prelude.py").read_text()
    _, start, body = inspect.getsource(attacking.function).partition(f"def {attacking.name}(")
    return f"{prelude}\n\n{start}{body}\n\nrun({attacking.name}, json.loads({json.dumps(given)!r}))\n"
