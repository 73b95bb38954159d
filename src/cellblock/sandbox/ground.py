"""What a zygote knows of the machine and of its interpreter, found out once and inherited by every session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cellblock.sandbox import linux, seccomp
from cellblock.sandbox import syscall as calls
from cellblock.sandbox.placeholders import Hold
from cellblock.sandbox.plan import HOME, Step, base_steps, make_plan, usual_beginning
from cellblock.sandbox.policy import Policy
from cellblock.sandbox.probe import Facts, interpreter_directories, look


@dataclass(frozen=True, slots=True)
class Ground:
    """What native sandboxes of one zygote stand on.

    Attributes:
        facts: What this machine has.
        interpreter: Where the interpreter and its packages lie.
        beginning: What most plans begin with.
    """

    facts: Facts
    interpreter: tuple[str, ...]
    beginning: list[Step]

    @classmethod
    def prepare(cls) -> Ground:
        """Look around, after `enter`."""
        facts, interpreter = look(), interpreter_directories()
        ground = cls(facts, interpreter, usual_beginning(facts, interpreter))
        seccomp.program(ground.facts.machine)  # assembled once; sessions inherit it
        return ground

    @classmethod
    def enter(cls) -> None:
        """Go into namespaces in which mounts can be made, and make the ones that all sessions share.

        This process must be started again then (exec): see `linux.enter_base`.

        Raises:
            OSError: This machine does not let us.
        """
        facts = look()
        linux.enter_base(facts.uid, facts.gid, base_steps(facts, interpreter_directories()))

    def enter_namespaces(self) -> list[Step]:
        """As process 1 of new namespaces: see `linux.enter_namespaces` and, for what is returned, `linux.prepare`."""
        linux.enter_namespaces(self.facts.uid, self.facts.gid)
        return linux.prepare(self.beginning)

    def build(self, spec: dict[str, Any], prepared: list[Step], keep: Callable[[str, Hold], None]) -> dict[str, Any]:
        """As a session's init: build what the session's policy asks for.

        Args:
            spec: From the host, with the session's ``plan``, or with ``policy`` and ``workspace`` where the host does not know
                this interpreter.
            prepared: From `enter_namespaces`.
            keep: Takes each directory and our hold on its placeholders, before any is made; to be released at the end.

        Returns:
            What the worker must apply to itself, before it runs anything.

        Raises:
            OSError, InvalidInputError: It cannot be built.
        """
        plan = spec.pop("plan", None)
        if plan is None:
            plan = make_plan(Policy.from_dict(spec["policy"]), self.facts, spec["workspace"], self.interpreter)
        for top, names in plan["reserve"].items():
            hold = Hold.take(top, names)
            if hold is not None:
                keep(top, hold)
                hold.fill()
        if spec["env"].get("HOME") == HOME:
            spec["env"]["HOME"] = plan["home"]
        return enclose({**plan, "steps": [*plan["steps"], *spec.pop("mounts", [])]}, prepared)


def enclose(plan: dict[str, Any], prepared: list[Step]) -> dict[str, Any]:
    """As process 1 of a sandbox: build it, and hide from what will run in it.

    Args:
        plan: From `make_plan`.
        prepared: As for `linux.build`.

    Returns:
        What each process must apply to itself (`confine`), before it runs anything.

    Raises:
        OSError: It cannot be built.
    """
    linux.build(plan, prepared)
    calls.hide()
    return {
        "root": calls.identity_of_root(),
        "limits": plan["limits"],
        "nice": plan["nice"],
        "seccomp": plan["seccomp"],
    }
