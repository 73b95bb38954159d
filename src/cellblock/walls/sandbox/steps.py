"""The steps of creating a sandboxed kernel, which errors name."""

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
"""Descriptions of the steps, in order."""

_MAX_SAID = 1000  # maximum characters


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed step.

    Attributes:
        step: The step.
        code: The system's error number; 0 if none.
        said: The message of the system or the process.
    """

    step: StepName
    code: int
    said: str


class StepError(OSError):
    """A step failed.

    Attributes:
        step: The step.
    """

    def __init__(self, step: StepName, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error))
        self.step = step


@contextmanager
def step(name: StepName) -> Iterator[None]:
    """Attribute system errors in this block to a step.

    Raises:
        StepError: There was a system error.
    """
    try:
        yield
    except StepError:
        raise
    except OSError as error:
        raise StepError(name, error) from error


def failure_of(error: OSError, default: StepName) -> Failure:
    """Return the failure that an error describes.

    Args:
        error: The error.
        default: The step, if the error does not name it.
    """
    return Failure(error.step if isinstance(error, StepError) else default, error.errno or 0, error.strerror or str(error))


def told_failure(step: str, code: int, said: str) -> Failure | None:
    """Return the failure that a process reported to the host; None if it names no step, and so concerns the request.

    The sender is untrusted, or may have another version.
    """
    known: StepName | None = next((name for name in STEPS if name == step), None)
    return None if known is None else Failure(known, code, said[:_MAX_SAID])
