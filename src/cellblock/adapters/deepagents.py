"""deepagents: `CellblockSandbox` is a backend whose commands and files are a session's."""

from __future__ import annotations

from typing import Any

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from cellblock.adapters.sessions import SyncSession
from cellblock.fronts.executor.sync import SyncCodeExecutor

_TIMED_OUT = 124
"""The exit code of timeout(1), which models know."""


class CellblockSandbox(BaseSandbox):
    """A sandbox for a deep agent: ``create_deep_agent(model, backend=CellblockSandbox())``.

    Commands run beside the session's kernel and cannot be forged by its code. They start in the workspace, and see all files
    that the policy of the session allows. End it with `close`, or use it as a context manager.
    """

    def __init__(self, executor: SyncCodeExecutor | None = None, *, command_timeout: int = 120, **options: Any) -> None:
        """Set up; a session of its own starts with the first command.

        Args:
            executor: A started executor, which stays the caller's.
            command_timeout: Seconds that a command may run, unless the agent says otherwise.
            options: The arguments of `CodeExecutor` for a new executor. Without `working_dir` it works in an empty directory
                of its own.

        Raises:
            InvalidInputError: An option is wrong.
        """
        self._session = SyncSession(executor, options)
        self._timeout = command_timeout

    @property
    def id(self) -> str:
        """The session's name in the record of decisions."""
        return self._session.executor.session_id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command; a timeout is the exit code 124 and a line in the output."""
        seconds = self._timeout if timeout is None else timeout
        result = self._session.executor.exec(command, timeout=seconds or None, merge=True)
        if result.status == "timeout":
            output = f"{result.out}\n[the command was stopped after {seconds} s]"
            return ExecuteResponse(output=output, exit_code=_TIMED_OUT, truncated=result.truncated)
        return ExecuteResponse(output=result.out, exit_code=result.exit_code, truncated=result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; what cannot be written is an error in its response."""
        fs = self._session.executor.fs
        return [FileUploadResponse(path=path, error=_tried(path, fs.write_bytes, data)[1]) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; what cannot be read is an error in its response."""
        fs = self._session.executor.fs
        tried = [(path, *_tried(path, fs.read_bytes)) for path in paths]
        return [FileDownloadResponse(path=path, content=content, error=error) for path, content, error in tried]

    def close(self) -> None:
        """End the session, if it is the sandbox's own. Can be called again."""
        self._session.close()

    def __enter__(self) -> CellblockSandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _tried(path: str, action: Any, *arguments: Any) -> tuple[Any, str | None]:
    """Return what an action on a path returns, and deepagents' word for what kept it from it."""
    if not path.startswith("/") or "\0" in path:
        return None, "invalid_path"
    try:
        return action(path, *arguments), None
    except FileNotFoundError:
        return None, "file_not_found"
    except PermissionError:
        return None, "permission_denied"
    except IsADirectoryError:
        return None, "is_directory"
    except OSError:
        return None, "invalid_path"
