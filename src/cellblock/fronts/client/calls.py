"""What the clients ask a gateway, and what its answers mean. No I/O: both clients send the same calls."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

from cellblock.errors import InvalidInputError
from cellblock.model import CodeExecutionResult, Completions, HistoryEntry
from cellblock.model.sessions import ExecutionRecord, Language, PendingApproval, Permission, SessionRecord

if TYPE_CHECKING:
    from cellblock.host.files import FileInfo
    from cellblock.model.checkpoints import Changes, CheckpointRecord, FilesMode, StateChanges, Undone
    from cellblock.model.saving import LoadReport, SaveReport
    from cellblock.model.variables import Variable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request.

    Attributes:
        method: Its method.
        path: Its path, in which names are quoted.
        read: Turns the JSON of the answer into what the caller gets.
        body: JSON data to send, or None.
        query: What follows the path.
        once: Whether it must not be made twice, so that a lost connection leaves its outcome unknown.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    once: bool = False


def get_or_create(name: str, tags: Mapping[str, str] | None, options: Mapping[str, Any]) -> Call[SessionRecord]:
    """Return the session of a name."""
    return Call("POST", f"/sessions/{_quoted(name)}", _record, {"tags": dict(tags or {}), "options": _options(options)})


def create(name: str, tags: Mapping[str, str] | None, options: Mapping[str, Any]) -> Call[SessionRecord]:
    """Make a session; it is an error if there is one of that name."""
    body = {"name": name or None, "tags": dict(tags or {}), "options": _options(options)}
    return Call("POST", "/kernels", _record, body)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a session as JSON data. A relative path is below the gateway's current directory."""
    try:
        data: dict[str, Any] = json.loads(json.dumps(given, allow_nan=False, default=os.fspath))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"options of a session are JSON data, and {given!r:.200} are not: {error}") from None
    return data


def list_kernels(*, refresh: bool) -> Call[list[SessionRecord]]:
    """List the sessions."""
    query = {"refresh": "true"} if refresh else {}
    return Call("GET", "/kernels", lambda data: [_record(one) for one in data["kernels"]], query=query)


def status(kernel: SessionRecord | str) -> Call[SessionRecord]:
    """Get the status of a session."""
    return Call("GET", _kernel(kernel), lambda data: _record(data["kernel"]))


def restart(kernel: SessionRecord | str) -> Call[SessionRecord]:
    """Give a session a fresh kernel."""
    return Call("POST", f"{_kernel(kernel)}/restart", _record)


def interrupt(kernel: SessionRecord | str) -> Call[bool]:
    """Stop what runs."""
    return Call("POST", f"{_kernel(kernel)}/interrupt", _done)


def destroy(kernel: SessionRecord | str) -> Call[bool]:
    """End a session."""
    return Call("DELETE", _kernel(kernel), lambda data: bool(data["destroyed"]))


def wipe() -> Call[list[str]]:
    """End all sessions."""
    return Call("DELETE", "/kernels", lambda data: list(data["destroyed"]))


def execute(kernel: SessionRecord | str, code: str, *, language: Language, timeout: float | None) -> Call[CodeExecutionResult]:
    """Run code."""
    return Call("POST", f"{_kernel(kernel)}/execute", CodeExecutionResult.from_dict, _code(code, language, timeout), once=True)


def submit(
    kernel: SessionRecord | str, code: str, *, language: Language, timeout: float | None, key: str, stdin: bool
) -> Call[ExecutionRecord]:
    """Have code run."""
    body = {**_code(code, language, timeout), "key": key, "stdin": stdin}
    return Call("POST", f"{_session(kernel)}/executions", ExecutionRecord.from_dict, body, once=True)


def lookup(execution: ExecutionRecord | str) -> Call[ExecutionRecord]:
    """Get the state of an execution."""
    return Call("GET", _execution(execution), ExecutionRecord.from_dict)


def executions(kernel: SessionRecord | str, count: int) -> Call[list[ExecutionRecord]]:
    """List executions."""
    path = f"{_session(kernel)}/executions"
    return Call(
        "GET", path, lambda data: [ExecutionRecord.from_dict(one) for one in data["executions"]], query={"count": str(count)}
    )


def cancel(execution: ExecutionRecord | str) -> Call[bool]:
    """Stop an execution."""
    return Call("POST", f"{_execution(execution)}/cancel", _done)


def answer(execution: ExecutionRecord | str, line: str) -> Call[bool]:
    """Answer input()."""
    return Call("POST", f"{_execution(execution)}/input", _done, {"line": line})


def events(execution: ExecutionRecord | str) -> str:
    """Return the path of an execution's events."""
    return f"{_execution(execution)}/events"


def complete(kernel: SessionRecord | str, code: str, cursor: int | None) -> Call[Completions]:
    """Complete code."""
    body = {"code": code, "cursor": -1 if cursor is None else cursor}
    return Call(
        "POST", f"{_session(kernel)}/complete", lambda data: Completions(data["matches"], data["start"], data["end"]), body
    )


def inspect(kernel: SessionRecord | str, code: str, cursor: int | None, detail: int) -> Call[str | None]:
    """Describe a name."""
    body = {"code": code, "cursor": -1 if cursor is None else cursor, "detail": detail}
    return Call("POST", f"{_session(kernel)}/inspect", lambda data: data["text"], body)


def history(kernel: SessionRecord | str, count: int) -> Call[list[HistoryEntry]]:
    """List what ran."""
    path = f"{_session(kernel)}/history"
    return Call("GET", path, lambda data: [HistoryEntry(**one) for one in data["history"]], query={"count": str(count)})


def variables(kernel: SessionRecord | str) -> Call[list[Variable]]:
    """List variables."""
    from cellblock.model.variables import Variable

    return Call("GET", f"{_session(kernel)}/variables", lambda data: [Variable.from_dict(one) for one in data["variables"]])


def make_checkpoint(kernel: SessionRecord | str, name: str, files: FilesMode) -> Call[CheckpointRecord]:
    """Keep the state of a session."""
    return Call("POST", f"{_session(kernel)}/checkpoints", _checkpoint_record, {"name": name, "files": files}, once=True)


def checkpoints(kernel: SessionRecord | str) -> Call[list[CheckpointRecord]]:
    """List checkpoints."""
    path = f"{_session(kernel)}/checkpoints"
    return Call("GET", path, lambda data: [_checkpoint_record(one) for one in data["checkpoints"]])


def restore(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> Call[Changes]:
    """Go back to a checkpoint."""
    from cellblock.model.checkpoints import Changes

    return Call(
        "POST",
        f"{_checkpoint(kernel, checkpoint)}/restore",
        lambda answer: Changes.from_dict(answer["changes"]),
        once=True,
    )


def drop_checkpoint(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> Call[None]:
    """Drop a checkpoint."""
    return Call("DELETE", _checkpoint(kernel, checkpoint), lambda _: None)


def undo(kernel: SessionRecord | str, count: int, partial: bool) -> Call[Undone]:
    """Undo cells."""
    from cellblock.model.checkpoints import Undone

    return Call("POST", f"{_session(kernel)}/undo", Undone.from_dict, {"count": count, "partial": partial}, once=True)


def diff(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> Call[StateChanges]:
    """Compare with a checkpoint."""
    from cellblock.model.checkpoints import StateChanges

    return Call("GET", f"{_checkpoint(kernel, checkpoint)}/diff", StateChanges.from_dict)


def fork(
    kernel: SessionRecord | str,
    names: Sequence[str],
    files: FilesMode | None,
    seeds: Sequence[int] | None,
    same_random_state: bool,
) -> Call[list[SessionRecord]]:
    """Make branches."""
    from cellblock.model.checkpoints import branch_names

    given = [*branch_names(names)]
    wanted = {"names": given, "files": files, "seeds": list(seeds or ()), "same_random_state": same_random_state}
    return Call("POST", f"{_session(kernel)}/fork", lambda data: [_record(one) for one in data["kernels"]], wanted, once=True)


def adopt(kernel: SessionRecord | str, branch: SessionRecord | str) -> Call[Changes]:
    """Go on with a branch."""
    from cellblock.model.checkpoints import Changes

    return Call("POST", f"{_session(kernel)}/adopt", Changes.from_dict, {"branch": _name(branch)}, once=True)


def saved(kernel: SessionRecord | str) -> str:
    """Return the path at which a session is saved."""
    return f"{_session(kernel)}/save"


def loaded(kernel: SessionRecord | str) -> str:
    """Return the path at which a session is loaded."""
    return f"{_session(kernel)}/load"


def exported(kernel: SessionRecord | str, local: str | os.PathLike[str]) -> str:
    """Return the path at which a session is exported, to a file of this name."""
    kind = os.path.splitext(local)[1].lower()
    if kind not in (".ipynb", ".py"):
        raise InvalidInputError(f"{os.fspath(local)!r} must end with .ipynb, for a notebook, or .py, for a script")
    return f"{_session(kernel)}/export?format={kind[1:]}"


def files(asked: bool) -> dict[str, str]:
    """Return the query that says whether the files of the workspace are meant, too."""
    return {"files": "true" if asked else "false"}


def load_report(data: Mapping[str, Any]) -> LoadReport:
    """Return what was loaded."""
    from cellblock.model.saving import LoadReport

    return LoadReport.from_dict(data)


def save_report(local: str | os.PathLike[str]) -> SaveReport:
    """Return what a file holds that was saved."""
    from cellblock.host.saved_file import report

    return report(local)


def install(kernel: SessionRecord | str, requirements: tuple[str, ...], timeout: float | None) -> Call[CodeExecutionResult]:
    """Install packages."""
    body = {"requirements": list(requirements), "timeout": timeout}
    return Call("POST", f"{_session(kernel)}/install", CodeExecutionResult.from_dict, body, once=True)


def search_tools(kernel: SessionRecord | str, words: str, limit: int) -> Call[list[str]]:
    """Search tools."""
    query = {"query": words, "limit": str(limit)}
    return Call("GET", f"{_session(kernel)}/tools", lambda data: list(data["tools"]), query=query)


def pending(kernel: SessionRecord | str | None) -> Call[list[PendingApproval]]:
    """List what waits."""
    query = {} if kernel is None else {"session": _name(kernel)}
    return Call("GET", "/approvals", lambda data: [PendingApproval.from_dict(one) for one in data["pending"]], query=query)


def decide(ids: tuple[str, ...], *, allow: bool, always: str, answer: Mapping[str, Any] | None) -> Call[list[str]]:
    """Decide about what waits."""
    body = {"ids": list(ids), "allow": allow, "always": always, "answer": dict(answer or {})}
    return Call("POST", "/approvals", lambda data: list(data["decided"]), body)


def allowed(kernel: SessionRecord | str | None) -> Call[list[Permission]]:
    """List what was allowed."""
    query = {} if kernel is None else {"session": _name(kernel)}
    return Call("GET", "/approvals/allowed", lambda data: [Permission.from_dict(one) for one in data["allowed"]], query=query)


def revoke(ids: tuple[str, ...]) -> Call[list[str]]:
    """Revoke what was allowed."""
    return Call("POST", "/approvals/revoke", lambda data: list(data["revoked"]), {"ids": list(ids)})


def list_files(kernel: SessionRecord | str, path: str, *, recursive: bool) -> Call[list[FileInfo]]:
    """List a folder."""
    query = {"path": path, "recursive": "true" if recursive else "false"}
    return Call("GET", f"{_session(kernel)}/files", lambda data: [file_info(one) for one in data["files"]], query=query)


def remove_file(kernel: SessionRecord | str, path: str, *, recursive: bool) -> Call[bool]:
    """Remove a file."""
    return Call("DELETE", file(kernel, path), _done, query={"recursive": "true" if recursive else "false"})


def file(kernel: SessionRecord | str, path: str) -> str:
    """Return the path of a file."""
    return f"{_session(kernel)}/files/{quote(path, errors='surrogateescape')}"


def file_info(data: Mapping[str, Any]) -> FileInfo:
    """Return what is known of a file."""
    from cellblock.host.files import FileInfo

    return FileInfo(**data)


class EventLines:
    """Turns the lines of server-sent events into the data of each event."""

    def __init__(self) -> None:
        self._kind = ""
        self._data: list[str] = []

    def take(self, line: str) -> tuple[str, Any] | None:
        """Take one line; return the event that it ends, as its kind and its data."""
        if not line:
            kind, data = self._kind, "\n".join(self._data)
            self._kind, self._data = "", []
            return (kind, json.loads(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None


def _code(code: str, language: Language, timeout: float | None) -> dict[str, Any]:
    if language not in ("python", "bash"):
        raise InvalidInputError(f"language must be 'python' or 'bash', not {language!r}")
    return {"code": code, "language": language, "timeout": timeout}


def _record(data: Mapping[str, Any]) -> SessionRecord:
    return SessionRecord.from_dict({name: value for name, value in data.items() if name != "age_seconds"})


def _checkpoint_record(data: Mapping[str, Any]) -> CheckpointRecord:
    from cellblock.model.checkpoints import CheckpointRecord

    return CheckpointRecord.from_dict(data)


def _done(data: Mapping[str, Any]) -> bool:
    return bool(data["done"])


def _name(kernel: SessionRecord | str) -> str:
    if isinstance(kernel, SessionRecord):
        return kernel.kernel_id
    if isinstance(kernel, str) and kernel:
        return kernel
    raise InvalidInputError(f"a session is a SessionRecord, a name or an id, not {kernel!r}")


def _quoted(name: str) -> str:
    if not isinstance(name, str) or not name.strip("."):
        raise InvalidInputError(f"{name!r} is not a valid name for a session")
    return quote(name, safe="", errors="surrogateescape")


def _kernel(kernel: SessionRecord | str) -> str:
    return f"/kernels/{_quoted(_name(kernel))}"


def _session(kernel: SessionRecord | str) -> str:
    return f"/sessions/{_quoted(_name(kernel))}"


def _checkpoint(kernel: SessionRecord | str, checkpoint: CheckpointRecord | str) -> str:
    name = checkpoint if isinstance(checkpoint, str) else checkpoint.id
    if not name.strip(".") or "/" in name:
        raise InvalidInputError(f"{name!r} cannot be part of an address: use the id of the checkpoint")
    return f"{_session(kernel)}/checkpoints/{quote(name, safe='', errors='surrogateescape')}"


def _execution(execution: ExecutionRecord | str) -> str:
    return f"/executions/{_quoted(execution.id if isinstance(execution, ExecutionRecord) else execution)}"
