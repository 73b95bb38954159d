"""Facts about the machine and a zygote's interpreter: determined once and inherited by every session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cellblock.walls.linux import seccomp, syscall
from cellblock.walls.sandbox import mounts, namespaces
from cellblock.walls.sandbox.placeholders import Hold, names_to_keep
from cellblock.walls.sandbox.plan import base_steps, environment_steps, make_plan, usual_beginning
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.probe import Facts, interpreter_directories, look
from cellblock.walls.sandbox.repositories import protect_repositories
from cellblock.walls.sandbox.steps import step
from cellblock.wire.control import Setup
from cellblock.wire.sandbox import Confinement, Plan, Step

# Nothing of the host's environment may be visible in a kernel, not even in /proc/self/environ. The C library reads the setting
# at a program's start: blocks of at least 2 MiB get huge pages, so that the time of a fork does not grow with them.
ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The environment with which zygotes and interpreters start."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The common basis of one zygote's native sandboxes.

    Attributes:
        facts: Facts about this machine.
        interpreter: The directories of the interpreter and its packages.
        beginning: The first steps of most plans.
    """

    facts: Facts
    interpreter: tuple[str, ...]
    beginning: tuple[Step, ...]

    @classmethod
    def prepare(cls) -> Ground:
        """Determine the facts, after `enter`."""
        facts, interpreter = look(), interpreter_directories()
        ground = cls(facts, interpreter, usual_beginning(facts, interpreter))
        seccomp.program(ground.facts.machine)  # assembled once; sessions inherit it
        return ground

    @classmethod
    def enter(cls, environment: str) -> None:
        """Enter namespaces that allow mounts, and create the mounts that all sessions share.

        This process must then be restarted (exec), for `mounts.cover_interpreter`.

        Args:
            environment: The directory of a trusted environment, for `ENVIRONMENT_PLACE`; empty for none.

        Raises:
            StepError: This machine does not allow it.
        """
        facts = look()
        with step("user namespace"):
            namespaces.enter_mount_namespace(facts.uid, facts.gid)
            mounts.cut_ties()
        with step("shared mounts"):
            mounts.make_base([*base_steps(facts, interpreter_directories()), *environment_steps(environment)])
            mounts.cover_interpreter()

    def enter_namespaces(self) -> tuple[Step, ...]:
        """Enter namespaces as process 1 (`namespaces.enter_namespaces`). Return the result of `mounts.prepare`.

        Raises:
            StepError: This machine does not allow it.
        """
        with step("identity"):
            namespaces.enter_namespaces(self.facts.uid, self.facts.gid)
            mounts.cut_ties()
        return mounts.prepare(self.beginning)

    def plan(self, setup: Setup) -> Plan:
        """Return the plan for a session: the host's, or our own if the host does not know this interpreter.

        Raises:
            InvalidInputError: The policy cannot be enforced.
        """
        plan = setup.plan
        if plan is None:
            plan = make_plan(Policy.from_dict(setup.policy or {}), self.facts, setup.cwd, self.interpreter)
        return protect_repositories(replace(plan, steps=(*plan.steps, *setup.mounts)))


def reserve(plan: Plan, keep: Callable[[str, Hold], None]) -> None:
    """Block the names that the plan reserves, as a session's init.

    Args:
        plan: The plan.
        keep: Takes each directory and our hold on its placeholders before any is created; released at the end.

    Raises:
        OSError: They cannot be blocked.
    """
    for top, names in plan.reserve.items():
        hold = Hold.take(top, names_to_keep(top, names))
        if hold is not None:
            keep(top, hold)
            hold.fill()


def enclose(plan: Plan, prepared: tuple[Step, ...]) -> Confinement:
    """Build a sandbox as its process 1, and hide from its later processes.

    Args:
        plan: From `make_plan`.
        prepared: As for `mounts.build`.

    Returns:
        What each process must apply to itself (`confine`), before it runs anything.

    Raises:
        OSError: The sandbox cannot be built.
    """
    mounts.build(plan, prepared)
    syscall.hide()
    return Confinement(syscall.identity_of_root(), plan.restrictions)
