"""``cellblock exec``: runs code in a session. Standard library only, as `client`."""

from __future__ import annotations

import codecs
import functools
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

from cellblock.errors import CellblockError, InvalidInputError
from cellblock.fronts.cli import live
from cellblock.fronts.cli.daemon_access import call_in_session, chosen, session_options, until_taken
from cellblock.fronts.cli.output import print_json, wants_json
from cellblock.fronts.cli.problems import say
from cellblock.operations.base import MAX_REQUEST
from cellblock.operations.executions import Submit
from cellblock.operations.files import WriteFile
from cellblock.operations.sessions import Create
from cellblock.service import settings
from cellblock.service.daemon.daemon_connection import SessionConnection

_FOR_NEW_SESSIONS = "options apply to new sessions only, and --id names an existing one: leave them out"

DEFAULT_SESSION = "default"
"""The session that runs code if none is named."""


def run(
    *,
    name: str | None = None,
    session_id: str | None = None,
    code: str | None = None,
    file: str | None = None,
    bash: bool = False,
    timeout: str | None = None,
    as_json: bool = False,
    as_text: bool = False,
    for_model: bool = False,
    options: Mapping[str, Any] | None = None,
) -> int:
    """Run code in a session, which is created if it does not exist; return the exit status.

    Args:
        name: The session's name.
        session_id: The session's id, instead.
        code: The code; ``-`` for standard input.
        file: The file with the code, instead.
        bash: Whether the code is for bash.
        timeout: Limit in seconds.
        as_json: Whether to print JSON even to a terminal.
        as_text: Whether to print the code's output even if standard output is not a terminal.
        for_model: Whether to print one text for a language model instead.
        options: Options of the session, which an existing session must have.

    Raises:
        CellblockError: The code could not be run.
    """
    unnamed = name is None and session_id is None
    if unnamed:
        name = DEFAULT_SESSION
    chosen(name, session_id)
    if options and session_id is not None:
        raise InvalidInputError(f"{', '.join(sorted(options))}: {_FOR_NEW_SESSIONS}")
    for_programs = for_model or as_json or (not as_text and wants_json(asked=False))
    body = _code(code, file)
    request = Submit(
        name or session_id or "",
        language="bash" if bash else "python",
        timeout=milliseconds(timeout),
        live=not for_programs,
        stdin=not for_programs and code != "-",
    )

    def execute(connection: SessionConnection) -> dict[str, Any]:
        if options:
            make(connection, request.session, options)
        reader = live.Reader() if for_programs else live.Terminal()
        submit = functools.partial(_submit, connection, name, request, body)
        result = live.follow(connection, submit, reader, request.session)
        if for_model:
            _print_for_model(connection, request.session, result, reader.execution)
        return result

    result = until_taken(execute)
    if for_programs and not for_model:
        print_json(result)
    if unnamed:
        _explain_name(code, result)
    return live.exit_status(result)


def _explain_name(code: str | None, result: Mapping[str, Any]) -> None:
    """If the only argument was an unknown name, say how to run code in the session of this name."""
    if code is not None and code.isidentifier() and (result["error"] or {}).get("ename") == "NameError":
        say(f"cellblock: {code} was run as code; to run code in the session of this name: cellblock exec {code} CODE")


def _submit(connection: SessionConnection, name: str | None, request: Submit, body: bytes) -> str:
    """Submit code; return the execution's id. A missing session is created if its name is given."""
    answer = connection.call(request, body) if name is None else call_in_session(connection, name, request, body)
    return str(answer["id"])


def make(connection: SessionConnection, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Create a session, or check that the existing one has these options; return its record.

    Raises:
        InvalidInputError: The existing session has another option.
    """
    made: dict[str, Any] = connection.call(Create(name, session_options(options), chosen=tuple(options)))
    return made


def _print_for_model(connection: SessionConnection, session: str, data: Mapping[str, Any], execution: str) -> None:
    """Print the text of a result for a language model. A file in the session has the complete output."""
    from cellblock.model import MODEL_CHARS, CodeExecutionResult
    from cellblock.model.overflow import for_model

    text, overflow = for_model(CodeExecutionResult.from_dict(data), execution, MODEL_CHARS)
    if overflow is not None:
        try:
            connection.call(WriteFile(session, overflow.path), overflow.data)
        except CellblockError:
            text = overflow.without
    print(text)


def milliseconds(timeout: str | None) -> int:
    """Convert a timeout to milliseconds, the daemon's unit; None means the setting.

    Raises:
        InvalidInputError: The number is not positive, or a setting is invalid.
    """
    if timeout is None:
        return max(round(settings.current().execution_timeout * 1000), 1)
    try:
        seconds = float(timeout)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 1e12:
        raise InvalidInputError(f"--timeout must be a positive number of seconds, not {timeout!r}")
    return max(round(seconds * 1000), 1)


def _code(code: str | None, file: str | None) -> bytes:
    """Return the code: the argument, standard input, or a file."""
    if (code is None) == (file is None):
        raise InvalidInputError("give the code as CODE, as - to read it from standard input, or with --file FILE")
    if file is not None:
        return read_source(file)
    assert code is not None
    if code == "-":
        if not (data := sys.stdin.buffer.read(MAX_REQUEST + 1)).strip():
            raise InvalidInputError("standard input is empty: there is no code to run")
        return _checked(data, "standard input")
    return _checked(os.fsencode(code), "CODE")


def read_source(file: str) -> bytes:
    """Read the code in a file.

    Raises:
        InvalidInputError: The file cannot be read, or contains no code.
    """
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_REQUEST + 1)
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read: {error.strerror}") from error
    return _checked(data, file)


def _checked(data: bytes, origin: str) -> bytes:
    if len(data) > MAX_REQUEST:
        raise InvalidInputError(f"{origin} is larger than {MAX_REQUEST >> 20} MiB")
    data = data.removeprefix(codecs.BOM_UTF8)  # bash would read it as part of the first command
    try:
        if "\0" not in data.decode("utf-8"):
            return data
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{origin} is not valid UTF-8 (byte {error.start}): save it as UTF-8") from None
    raise InvalidInputError(f"{origin} is a binary file, not code")
