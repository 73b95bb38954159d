"""Results of cells in the form of code-sandboxes."""

from __future__ import annotations

import contextlib
import json
import time

from code_sandboxes.models import CodeError, ExecutionResult, Logs, OutputMessage, Result

from cellblock.model import CodeExecutionResult, OutputItem


def messages(text: str, error: bool) -> list[OutputMessage]:
    """Convert text to lines; an incomplete line is marked.

    Args:
        text: The text of a stream.
        error: Whether the stream is stderr.
    """
    lines = text.splitlines(keepends=True)
    now = time.time()
    return [
        OutputMessage(line=line.removesuffix("\n"), timestamp=now, error=error, terminated=line.endswith("\n"))
        for line in lines
    ]


def result(item: OutputItem) -> Result:
    """Convert an output of a cell: pictures to base64, JSON to data."""
    data = item.to_dict()["data"]
    for mime in data:
        if mime.endswith("json"):
            with contextlib.suppress(ValueError):  # may have been cut
                data[mime] = json.loads(data[mime])
    return Result(data=data, is_main_result=item.kind == "execute_result", extra={"metadata": dict(item.metadata)})


def converted(done: CodeExecutionResult, began: float) -> ExecutionResult:
    """Convert the result of a cell. A timeout and the kernel's death are failures of the execution, not errors of the code.

    Args:
        done: The result.
        began: When the cell began, as a Unix timestamp.
    """
    shown = [result(item) for item in done.outputs if item.kind in ("display_data", "execute_result")]
    logs = Logs(stdout=messages(done.output, False), stderr=messages(done.stderr, True))
    ended = ExecutionResult(results=shown, logs=logs, started_at=began, completed_at=time.time(), context_id="default")
    ended.execution_count = done.execution_count or 0
    error = done.error
    if done.status == "interrupted":
        ended.interrupted = True
        ended.code_error = CodeError(name="KeyboardInterrupt", value="the code was interrupted")
    elif error is not None and (done.status == "timeout" or done.status == "died"):
        ended.execution_ok, ended.execution_error = False, f"{error.ename}: {error.evalue}"
    elif error is not None and error.ename == "SystemExit":
        ended.exit_code = int(error.evalue) if error.evalue.isdecimal() else int(error.evalue not in ("", "None"))
    elif error is not None:
        ended.code_error = CodeError(name=error.ename, value=error.evalue, traceback="\n".join(error.traceback))
    return ended
