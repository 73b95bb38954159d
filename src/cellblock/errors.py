"""Everything that cellblock raises.

If user code fails, that is *data* (a result whose ``status`` is not ``success``). An exception means that cellblock
itself failed, or was asked for something that it cannot do::

    CellblockError
    ├── InvalidInputError         an argument is wrong; the message says how to fix it       (also a ValueError)
    ├── StateError                used before start, after stop, or after a fork             (also a RuntimeError)
    ├── NotFoundError             there is no session, execution or approval of that name or id (also a LookupError)
    │   └── SessionLostError      the session ended with its node of a cluster
    ├── ConflictError             there is a session of that name already, or a key was used with other code
    ├── BusyError                 a limit of the daemon or the machine is reached; ``retry_after`` says when to try again
    ├── AccessError               the gateway refuses: no valid token, or one that may not do this
    ├── DaemonError               the daemon cannot be started or reached, or ended during a request
    │   ├── NotRunError           … before the code began to run: it can be submitted again
    │   │   └── MovingError       the session moves to another node of a cluster: repeat the request there
    │   ├── NotPlacedError        a cluster's node may not create a session: it is placed again
    │   └── OutcomeUnknownError   … and it is unknown whether or how far the code ran
    ├── UnsupportedError          this machine or this version cannot do what was asked
    ├── LaunchError               no kernel could be started
    │   ├── InterpreterError      the interpreter is missing, too old, or has no IPython
    │   ├── PreloadError          a module to preload failed to import, or its environment is not trusted
    │   ├── SandboxError          the sandbox cannot be enforced, so nothing was started
    │   └── CustodianError        the process that holds the kernels' descriptors is missing, or is full
    ├── CheckpointError           a checkpoint cannot be made, or no longer exists; the session is unchanged
    │   └── UnknownCheckpointError    the session has none of that name or id
    ├── KernelDiedError           the kernel died during a request that is not a cell
    ├── ProcessError              a program beside the kernel could not be started; ``errno`` is the system's error number
    ├── ProtocolError             the other end of a connection violated the protocol
    ├── ToolRunnerError           a tool failed, or approval of its call was denied
    ├── FilesError                `session.files` could not do what was asked with a file, folder or archive
    │   └── SnapshotError         the files of a checkpoint could not be kept, compared or restored
    ├── McpServerError            an MCP server could not be started or reached, or violated the protocol
    ├── StoreError                stored state on the trusted side cannot be read, written, or trusted
    └── CodeExecutionError        executors only: the code failed; ``result`` has everything else
        └── ExecutionTimeoutError     … it was stopped at its deadline                       (also a TimeoutError)
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult


def with_host(host: str) -> str:
    """Return the option that lets a session reach a host, in Python and on the command line.

    Single quotes only: libraries show messages by `repr`, which escapes them if there are double quotes, too.
    """
    quoted = f"'{host}'" if " " in host else host
    return f"hosts=['{host}'] (on the command line: --host {quoted}; for cellblock mcp and serve: --allow-host {quoted})"


def allowing(host: str, session: str = "NAME") -> str:
    """Return how the owner of a running session lets it reach a host. For the quotes, see `with_host`."""
    quoted = f"'{host}'" if " " in host else host
    return f"cellblock network {session} --allow {quoted}, or change_network(allow=['{host}'])"


NO_NETWORK = f"this session has no network: to reach a host, make a session with {with_host('NAME')}"
"""The explanation for a failed connection in a session without a network."""

NO_NETWORK_BY_LANDLOCK = (
    "this session has no network, because isolate='landlock' has none (docs/landlock.md): hosts can be allowed with "
    "isolate='native' only"
)
"""The same for a sandbox without any network."""

ONLY_PROXY = (
    "this session reaches only the hosts that its option hosts (--host) or its policy names, and those through its proxy, "
    "which HTTP_PROXY and ALL_PROXY name; SOCKS5 works too"
)
"""The explanation for a failed connection that bypasses the proxy."""


_MAX_BITS = 10_000  # of an integer: 3,000 digits
_MAX_NEAR = 40  # characters of names that are compared, which takes up to 0.15 ms each
_MAX_SHOWN = 200  # characters of a wrong value in a message


class _Shown(reprlib.Repr):
    """A `reprlib.Repr` that cuts long values."""

    def repr_int(self, x: int, level: int) -> str:
        """Refuse thousands of digits on every Python version: from 3.14 on, `reprlib` would show an address instead."""
        if x.bit_length() > _MAX_BITS:
            raise ValueError("it has too many digits")
        return super().repr_int(x, level)


def shown(value: object) -> str:
    """Return an invalid value for an error message. The value may have any size and depth, so it is cut."""
    try:
        return _Shown().repr(value)[:_MAX_SHOWN]
    except ValueError:  # an integer with thousands of digits, possibly inside an object
        return "a value that is too large to show"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" for a message about an unknown name if a known name is similar; else an empty text."""
    import difflib  # only for a mistake

    if len(name) > _MAX_NEAR:
        return ""
    near = difflib.get_close_matches(name, [one for one in known if len(one) <= _MAX_NEAR], 1)
    return f"; did you mean {near[0]!r}?" if near else ""


class CellblockError(Exception):
    """The base class of all errors of cellblock."""

    _details: ClassVar[Mapping[str, Any]] = {}
    """The attributes that another process gets with it, and which values each may have."""

    def details(self) -> dict[str, Any]:
        """Return JSON data for another process, in addition to class and message. Lone surrogates become ``?``."""
        values = {name: getattr(self, name) for name in self._details}
        return {
            name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            for name, value in values.items()
        }

    @classmethod
    def remade(cls, message: str, details: Mapping[str, Any]) -> Self:
        """Recreate an error that another process raised.

        Args:
            message: The error's message.
            details: The error's `details`. Unknown keys are ignored.
        """
        known = {name: details[name] for name, kind in cls._details.items() if isinstance(details.get(name, ...), kind)}
        return cls(message, **known)


class InvalidInputError(CellblockError, ValueError):
    """An argument is invalid. The message names it and says how to fix it. Nothing was changed."""


class StateError(CellblockError, RuntimeError):
    """The object cannot be used now: it is not started, already stopped, or was carried across a fork."""


class NotFoundError(CellblockError, LookupError):
    """No session, execution, file or approval has this name or id."""

    __str__ = Exception.__str__


class SessionLostError(NotFoundError):
    """The session ended with its cluster node. How far its code ran is unknown."""


class ConflictError(CellblockError):
    """Something of that name already exists."""


class BusyError(CellblockError):
    """A limit of the daemon, or of the machine's memory, is reached. Nothing was done.

    Attributes:
        retry_after: Seconds after which to retry.
    """

    _details: ClassVar[Mapping[str, Any]] = {"retry_after": int | float}

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AccessError(CellblockError):
    """A request is refused: it has no valid token, the token does not permit it, or it was not approved."""


class DaemonError(CellblockError):
    """The daemon or the gateway cannot be started or reached, or ended during a request."""


class NotRunError(DaemonError):
    """The daemon ended before the code started. The code can be submitted again."""


class MovingError(NotRunError):
    """The session is moving to another cluster node. Nothing was done. Cluster links retry until it has arrived."""


class NotPlacedError(DaemonError):
    """A cluster node must not create the requested session. Nothing was created; the director places the session again."""


class OutcomeUnknownError(DaemonError):
    """The process that ran the code ended before it reported the outcome. Code is never rerun automatically.

    Attributes:
        execution: The id of the execution; empty if unknown.
    """

    _details: ClassVar[Mapping[str, Any]] = {"execution": str}

    def __init__(self, message: str, execution: str = "") -> None:
        super().__init__(message)
        self.execution = execution


class UnsupportedError(CellblockError):
    """This machine, or this version of cellblock, cannot do what was asked."""


class LaunchError(CellblockError):
    """No kernel could be started. The message has the likely cause, possible solutions, and the last lines of output.

    Attributes:
        step: The step that failed, as listed by `cellblock doctor`; empty if none of them did.
        code: The system's error number (`errno`); 0 if none.
        said: The message of the system or the process.
    """

    def __init__(self, message: str, *, step: str = "", code: int = 0, said: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.code = code
        self.said = said


class InterpreterError(LaunchError):
    """The interpreter does not exist, is too old, or has no IPython."""


class PreloadError(LaunchError):
    """A module in `preload` failed to import, or its environment is not trusted."""


class SandboxError(LaunchError):
    """The sandbox cannot be enforced here. Nothing was started; the message says what is missing and what to do."""


class CustodianError(LaunchError):
    """The custodian, which holds the kernels' descriptors, cannot be started or reached, has ended, or is full."""


class KernelDiedError(CellblockError):
    """The kernel died during a request that has no result of its own, such as a completion."""


class ProcessError(CellblockError):
    """A program outside the kernel could not be started, or its helper failed. The message has the reason.

    Attributes:
        errno: The system's error number; 0 if none.
    """

    _details: ClassVar[Mapping[str, Any]] = {"errno": int}

    def __init__(self, message: str, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class CheckpointError(CellblockError):
    """A checkpoint could not be made, no longer exists, or belongs to another host. The session is unchanged."""


class UnknownCheckpointError(CheckpointError):
    """The session has no checkpoint with this name or id. The message lists the existing ones."""


class ProtocolError(CellblockError):
    """The other end of a connection violated the protocol (see docs/wire.md)."""


class ToolRunnerError(CellblockError):
    """A tool failed, or its call was denied or not approved in time. The message quotes the server."""

    def _render_traceback_(self) -> list[str]:
        """Return IPython's traceback without the frames between the call and the server."""
        import sys
        from types import TracebackType

        own, here = [], __file__.rpartition("/")[0]
        trace = self.__traceback__
        while trace is not None:
            code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
            generated = (
                names.get("__name__") != "__main__"  # which has `call`, too, after `from … import *`
                and getattr(names.get("call"), "__module__", "") == "cellblock.tools.calling.typed"
            )
            if not code.co_filename.startswith(here) and not generated:
                own.append(trace)
            trace = trace.tb_next
        shown = None
        for one in reversed(own):
            shown = TracebackType(shown, one.tb_frame, one.tb_lasti, one.tb_lineno)
        shell: Any = sys.modules["IPython.core.getipython"].get_ipython()  # the caller
        cause, self.__cause__ = self.__cause__, None  # how the connection failed, if it did: its frames belong to this package
        try:
            found: list[str] = shell.InteractiveTB.structured_traceback(type(self), self, shown)
        finally:
            self.__cause__ = cause
        return found


class FilesError(CellblockError):
    """A file, folder or archive could not be handled; the message says which, why, and what to do.

    Attributes:
        path: The path, relative to the workspace or on the caller's disk; None for an archive as a whole.
        errno: The system's error number, or None (`errno.ENOENT`: missing, `errno.ELOOP`: a link, `errno.EFBIG`: over a
            limit).
    """

    _details: ClassVar[Mapping[str, Any]] = {"path": str | None, "errno": int | None}

    def __init__(self, message: str, *, path: str | None = None, errno: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.errno = errno


class SnapshotError(FilesError):
    """The files of a checkpoint could not be stored, compared or restored. Nothing was changed, unless the message says so."""


class McpServerError(CellblockError):
    """An MCP server could not be started or reached, died, took too long, or violated the protocol or a limit.

    A failure that a tool reports is data, not an error (`ToolOutcome.is_error`). Other servers continue. If the connection
    was lost, the server's next call reconnects.

    Attributes:
        server: The server's name.
        stderr: The last lines of the server's standard error; empty if none.
    """

    def __init__(self, message: str, *, server: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.server = server
        self.stderr = stderr


class StoreError(CellblockError):
    """Stored state on the trusted side cannot be read or written, or others could change it; the message says where."""


class CodeExecutionError(CellblockError):
    """The executed code failed. Executors raise this with the traceback in the message, unless ``check=False``.

    Attributes:
        result: The execution's result: output so far, images, error, recovery.
    """

    def __init__(self, message: str, result: CodeExecutionResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class ExecutionTimeoutError(CodeExecutionError, TimeoutError):
    """Code was stopped at its deadline, and no longer runs. ``result.recovery`` says how it was stopped."""


def named(name: str) -> type[CellblockError]:
    """Return the error class with a name; `DaemonError` for an unknown name, for example from a newer version."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, CellblockError) else DaemonError


def failure(data: Mapping[str, Any], execution: str) -> CellblockError:
    """Create the error of an execution that has no result.

    Args:
        data: The data of its ``failed`` event; empty if none.
        execution: The execution's id.
    """
    message = str(data.get("message") or "the outcome of the execution is unknown: its result was not stored")
    kind = OutcomeUnknownError if data.get("ran") in (None, "unknown") else named(str(data.get("error")))
    return kind.remade(message, {"execution": execution})
