"""The steps in which a sandboxed kernel is made. What fails is told with the step that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

StepName: TypeAlias = Literal[
    "user namespace",
    "shared mounts",
    "group",
    "process",
    "identity",
    "files",
    "proc",
    "worker",
    "confinement",
    "python",
    "cell",
]

STEPS: dict[StepName, str] = {
    "user namespace": "make a user namespace, in which mounts are allowed",
    "shared mounts": "mount the system and the interpreter, once for all sessions",
    "python": "start the interpreter there, and import IPython",
    "group": "make a control group for it",
    "process": "start a process in namespaces of its own",
    "identity": "give it a user, a host name and a network of its own",
    "worker": "start the worker",
    "files": "build the session's file system",
    "proc": "mount /proc",
    "confinement": "set limits, drop privileges, install the system-call filter",
    "cell": "run a first cell",
}
"""What is done in each step, in order."""

_MAX_SAID = 1000  # characters


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed.

    Attributes:
        step: In which step.
        code: The system's error number; 0 if there is none.
        said: What the system, or the process, said.
    """

    step: StepName
    code: int
    said: str


class StepError(OSError):
    """A step failed.

    Attributes:
        step: Which one.
    """

    def __init__(self, step: StepName, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error))
        self.step = step


@contextmanager
def step(name: StepName) -> Iterator[None]:
    """Tell a system error that is raised in this block as one of this step.

    Raises:
        StepError: There was one.
    """
    try:
        yield
    except StepError:
        raise
    except OSError as error:
        raise StepError(name, error) from error


def failure_of(error: OSError, default: StepName) -> Failure:
    """Return what an error says has failed.

    Args:
        error: The error.
        default: The step that it belongs to if it does not say so itself.
    """
    return Failure(error.step if isinstance(error, StepError) else default, error.errno or 0, error.strerror or str(error))


def told_failure(step: str, code: int, said: str) -> Failure | None:
    """Return the failure that a process told the host; None if it names no step: then it is about what was asked for.

    Whoever sent it may be hostile, or of another version.
    """
    known: StepName | None = next((name for name in STEPS if name == step), None)
    return None if known is None else Failure(known, code, said[:_MAX_SAID])
