"""deepagents: `CellblockSandbox` is a backend with the commands and files of a session."""

from __future__ import annotations

from typing import Any

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from cellblock.adapters.adapter_session import SyncSession
from cellblock.fronts.executor.sync import SyncCodeExecutor

_TIMED_OUT = 124
"""The exit code of timeout(1), which models know."""


class CellblockSandbox(BaseSandbox):
    """A sandbox for a deep agent: ``create_deep_agent(model, backend=CellblockSandbox())``.

    Commands run next to the session's kernel, whose code cannot fake their output. They start in the workspace, and see all
    files that the session's policy allows. End the sandbox with `close`, or use it as a context manager.
    """

    def __init__(self, executor: SyncCodeExecutor | None = None, *, command_timeout: int = 120, **options: Any) -> None:
        """Set up. The sandbox's own session starts with the first command.

        Args:
            executor: A started executor, which the caller stops.
            command_timeout: Default limit of a command in seconds.
            options: The arguments of `CodeExecutor` for a new executor. Without `working_dir`, it works in an empty
                directory of its own.

        Raises:
            InvalidInputError: An option is invalid.
        """
        self._session = SyncSession(executor, options)
        self._timeout = command_timeout

    @property
    def id(self) -> str:
        """The session's id in the audit record."""
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
        """Write files; failures are errors in their responses."""
        fs = self._session.executor.fs
        return [FileUploadResponse(path=path, error=_tried(path, fs.write_bytes, data)[1]) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; failures are errors in their responses."""
        fs = self._session.executor.fs
        tried = [(path, *_tried(path, fs.read_bytes)) for path in paths]
        return [FileDownloadResponse(path=path, content=content, error=error) for path, content, error in tried]

    def close(self) -> None:
        """End the session, if the sandbox owns it. The operation is idempotent."""
        self._session.close()

    def __enter__(self) -> CellblockSandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _tried(path: str, action: Any, *arguments: Any) -> tuple[Any, str | None]:
    """Return the result of an action on a path, and deepagents' code for its failure."""
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
