"""Creates a complete session to test this machine, and reports failures: for `cellblock doctor`."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import Any, Literal

from cellblock.common.config import Isolate
from cellblock.errors import CellblockError, InterpreterError, LaunchError
from cellblock.host.host import Host
from cellblock.walls.sandbox import causes
from cellblock.walls.sandbox.policy import Policy
from cellblock.walls.sandbox.steps import STEPS, Failure, StepName, told_failure

State = Literal["ok", "failed", "not reached"]


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of creating a session.

    Attributes:
        seconds: Duration until success or failure.
        error: The error message; empty if a first cell ran.
        failure: The failed step, if any.
    """

    seconds: float
    error: str = ""
    failure: Failure | None = None

    @property
    def ok(self) -> bool:
        """Whether a first cell ran."""
        return not self.error

    def steps(self) -> list[tuple[StepName, State]]:
        """Return the outcome of each step, in order."""
        if self.failure is None:
            return [(name, "ok") for name in STEPS] if self.ok else []
        names = [*STEPS]
        place = names.index(self.failure.step)
        return [
            *((name, "ok") for name in names[:place]),
            (self.failure.step, "failed"),
            *((name, "not reached") for name in names[place + 1 :]),
        ]

    def as_data(self) -> dict[str, Any]:
        """Return the trial as JSON data, with the likely cause and remedies."""
        cause = None if self.failure is None else causes.find_cause(self.failure)
        return {
            "ok": self.ok,
            "seconds": round(self.seconds, 2),
            "error": self.error,
            "steps": [{"step": name, "what": STEPS[name], "state": state} for name, state in self.steps()],
            "said": "" if self.failure is None else self.failure.said,
            "cause": "" if cause is None else cause.why,
            "ways": [] if cause is None else [{"what": way.what, "line": way.line} for way in cause.ways],
        }


async def try_session(isolate: Isolate, policy: Policy | None = None) -> Trial:
    """Create a host and a session, run a first cell, and close both.

    Args:
        isolate: The session's isolation.
        policy: The policy of its sandbox; None for the default.
    """
    began = time.monotonic()
    error, failure = "", None
    try:
        async with Host(isolate=isolate, policy=policy) as host:
            with tempfile.TemporaryDirectory(prefix="cellblock-doctor-") as workspace:
                async with host.session(working_dir=workspace) as session:
                    result = await session.execute("6 * 7")
        if result.return_value != "42":
            error = f"the first cell did not return 42: {result.status}"
            failure = Failure("cell", 0, result.error.evalue if result.error else result.status)
    except LaunchError as raised:
        error = str(raised)
        step = "python" if isinstance(raised, InterpreterError) else raised.step
        failure = told_failure(step, raised.code, raised.said or error)
    except (CellblockError, OSError) as raised:
        error = str(raised)
    return Trial(time.monotonic() - began, error, failure)
