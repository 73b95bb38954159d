"""DSPy: `CellblockInterpreter` runs the code of `RLM`, `ProgramOfThought` and `CodeAct` in a session; tools run here."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from typing import Any, Self

from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput
from pydantic_core import to_jsonable_python

from cellblock.adapters.adapter_session import SyncSession
from cellblock.errors import CellblockError
from cellblock.fronts.executor.sync import SyncCodeExecutor
from cellblock.model import CodeExecutionResult

_SUBMITTED = "_Submitted"
_SUBMIT = f"""
def _submitting(send):
    import json
    class {_SUBMITTED}(BaseException):
        "The program has its answer: the cell ends."
    def plain(value):
        try:
            json.dumps(value, allow_nan=False)
            return value
        except (TypeError, ValueError):
            return repr(value)
    def SUBMIT(*args, **kwargs):
        send([plain(value) for value in args], {{name: plain(value) for name, value in kwargs.items()}})
        raise {_SUBMITTED}()
    return SUBMIT
SUBMIT = _submitting(SUBMIT)
del _submitting
"""


class CellblockInterpreter:
    """A `CodeInterpreter`: ``dspy.RLM(signature, interpreter_factory=CellblockInterpreter)``.

    If its process dies, every later call raises an error. It never continues with a fresh process.

    Attributes:
        tools: The functions that the code may call, by name. May be changed between executions.
        output_fields: The fields of ``SUBMIT``, each a dict with a name; None for one field named ``output``.
    """

    execution_instructions = (
        "Code runs in a persistent IPython session on Linux: variables, imports and functions persist, top-level await works. "
        "Host tools and SUBMIT are global functions; their arguments and results are JSON data."
    )

    def __init__(
        self,
        tools: dict[str, Callable[..., Any]] | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        *,
        executor: SyncCodeExecutor | None = None,
        **options: Any,
    ) -> None:
        """Set up. The interpreter's own session starts with `start`, or with the first code.

        Args:
            tools: As the attribute.
            output_fields: As the attribute.
            executor: A started executor, which the caller stops.
            options: The arguments of `CodeExecutor` for a new executor, if none is given.

        Raises:
            InvalidInputError: An option is invalid.
        """
        self.tools = dict(tools or {})
        self.output_fields = output_fields
        self._session = SyncSession(executor, options)
        self._defined: dict[str, Callable[..., Any]] | None = None
        self._submitted: dict[str, Any] | None = None
        self._ended = ""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the session, if it is not started."""
        self._check()
        try:
            _ = self._session.executor
        except CellblockError as error:
            raise CodeInterpreterError(f"the session cannot be started: {error}") from error

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Run code, after setting variables.

        Returns:
            `FinalOutput` if the code called ``SUBMIT``; otherwise its output. Without output, the value of the last
            expression if that is a literal, or None.

        Raises:
            SyntaxError: The code is not Python.
            CodeExecutionError: The code failed, or was stopped at its time limit.
            CodeInterpreterError: The process died, or the session is closed.
        """
        if not self._lock.acquire(blocking=False):
            raise CodeInterpreterError("this interpreter already runs code: create one interpreter per thread")
        try:
            self.start()
            executor = self._session.executor
            self._define(executor)
            for name, value in (variables or {}).items():
                executor.put(name, value if isinstance(value, str | bytes) else to_jsonable_python(value))
            self._submitted = None
            return self._judged(executor.execute(code, check=False))
        except CellblockError as error:
            raise CodeInterpreterError(str(error)) from error
        finally:
            self._lock.release()

    def _define(self, executor: SyncCodeExecutor) -> None:
        """Offer the tools to the code, for each execution, because they run in its context (`dspy.context`)."""
        definitions = executor.offer({**self.tools, "SUBMIT": self._submit}, "dspy")
        if self._defined != self.tools:
            executor.execute(f"{definitions}\n{_SUBMIT}")
            self._defined = dict(self.tools)

    def _submit(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        names = ["output"] if self.output_fields is None else [field["name"] for field in self.output_fields]
        values = dict(zip(names, args, strict=False)) | kwargs
        if len(args) > len(names) or {*values} != {*names} or len(values) < len(args) + len(kwargs):
            raise TypeError(f"SUBMIT takes {', '.join(names)}, each once")
        self._submitted = values

    def _judged(self, result: CodeExecutionResult) -> Any:
        error = result.error
        if result.status == "died" or result.recovery in ("restored_earlier", "restarted"):
            self._ended = f"the interpreter's process ended: {error.evalue if error else result.recovery}"
            self._session.close()
            raise CodeInterpreterError(self._ended)
        if error is None:
            return _value(result)
        if error.ename == _SUBMITTED and self._submitted is not None:
            return FinalOutput(self._submitted)
        if error.ename in ("SyntaxError", "IndentationError", "TabError"):
            raise SyntaxError(error.evalue)
        raise CodeExecutionError(f"{error.ename}: {error.evalue}")

    def _check(self) -> None:
        if self._ended:
            raise CodeInterpreterError(self._ended)

    def shutdown(self) -> None:
        """End the session, if the interpreter owns it. The operation is idempotent."""
        self._ended = self._ended or "this interpreter is shut down: make a new one"
        self._session.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


def _value(result: CodeExecutionResult) -> Any:
    if result.return_value is None or result.output:
        return result.text
    try:
        return ast.literal_eval(result.return_value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return result.text
