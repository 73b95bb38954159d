"""Google's ADK: `CellblockCodeExecutor` runs the code of an `LlmAgent`; variables last as long as ADK's session."""

from __future__ import annotations

import base64
import dataclasses
import threading
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
from pydantic import PrivateAttr

from cellblock.adapters.adapter_session import SyncSession
from cellblock.fronts.executor.executor_options import AS_MADE
from cellblock.model import CodeExecutionResult as Result
from cellblock.model.blocks import PICTURES, pictures

_HAS_EXIT_CODE = "exit_code" in {field.name for field in dataclasses.fields(CodeExecutionResult)}


class CellblockCodeExecutor(BaseCodeExecutor):
    """An executor of a model's code blocks: ``LlmAgent(code_executor=CellblockCodeExecutor())``.

    Each session of ADK has a session of cellblock, in a directory of its own unless `working_dir` is given. Input files are
    written there; pictures displayed by a cell are output files.
    """

    stateful: bool = True

    _options: dict[str, Any] = PrivateAttr(default_factory=dict)
    _sessions: dict[str, SyncSession] = PrivateAttr(default_factory=dict)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(self, **options: Any) -> None:
        """Set up. Sessions start with the first code.

        Args:
            options: Fields of ADK's `BaseCodeExecutor`, and arguments of `CodeExecutor` for the sessions.

        Raises:
            InvalidInputError: An option is invalid.
        """
        fields = {name: options.pop(name) for name in [*options] if name in BaseCodeExecutor.model_fields}
        super().__init__(**{"stateful": True, **fields})
        SyncSession(None, options)  # validates the options
        self._options = options

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        """Run code in the session of its execution id, or of ADK's session if it has none."""
        number = code_execution_input.execution_id or invocation_context.session.id
        with self._lock:
            session = self._sessions.setdefault(number, SyncSession(None, self._options))
        executor = session.executor
        for file in code_execution_input.input_files:
            executor.files.write(file.name, _bytes(file.content))
        seconds = getattr(self, "timeout_seconds", None)  # not in older releases
        limit = AS_MADE if seconds is None else float(seconds)
        return _converted(executor.execute(code_execution_input.code, limit, check=False))

    def end(self, execution_id: str) -> None:
        """End the session of an execution id, if it exists. The next code with that id starts a new one."""
        with self._lock:
            session = self._sessions.pop(execution_id, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        """End all sessions."""
        for number in [*self._sessions]:
            self.end(number)


def _bytes(content: str | bytes) -> bytes:
    """Return a file's bytes. ADK writes them raw or as base64, without saying which."""
    data = content.encode() if isinstance(content, str) else content
    try:
        decoded = base64.b64decode(data, validate=True)
    except ValueError:
        return data
    return decoded if base64.b64encode(decoded) == data else data


def _converted(result: Result) -> CodeExecutionResult:
    files = [
        File(f"image-{result.execution_count}-{number}.{PICTURES[mime]}", data, mime)
        for number, (mime, data) in enumerate(pictures(result.outputs), 1)
    ]
    status = {"exit_code": 0 if result.error is None else 1} if _HAS_EXIT_CODE else {}
    if result.error is None:
        # ADK takes any stderr for a failure, and then shows nothing else: warnings would hide the result.
        return CodeExecutionResult(stdout=result.text or "", output_files=files, **status)
    errors = "\n".join([*filter(None, [result.stderr]), *(result.error.traceback or [str(result.error)])])
    return CodeExecutionResult(stdout=result.output, stderr=errors, output_files=files, **status)
