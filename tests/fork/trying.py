"""Tries which libraries survive a fork of the process that has used them: each is used, and used again in a copy.

    PYTHONPATH=tests python -m fork.trying                      all that are installed, as JSON, one line each
    PYTHONPATH=tests python -m fork.trying numpy torch          some

The copy is made as for a checkpoint: a grandchild, which forks once more when it is restored.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path
from typing import IO, Any, NoReturn

from cellblock.worker.forks import safety as fork_safety
from fork.libraries import LIBRARIES, PYTHONS, Library

_DEADLINE = 20  # seconds for each use


def installed(name: str) -> str | None:
    """Return the version of a library that is installed, Python's for one of Python's, or None."""
    library = LIBRARIES[name]
    package = library.package or name.partition(",")[0]
    if package in PYTHONS or package in sys.stdlib_module_names:
        return f"Python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def run(code: str, names: dict[str, Any]) -> bool:
    """Run code, and return whether the expression at its end, if there is one, is true."""
    *statements, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        statements, last = [*statements, last], ast.Expr(ast.parse("True", mode="eval").body)
    exec(compile(ast.Module(statements, []), "<code>", "exec"), names)
    return bool(eval(compile(ast.Expression(last.value), "<code>", "eval"), names))


def try_out(name: str) -> dict[str, Any]:
    """Use a library, fork, and use it again in the copy; in this process, which is of no use afterwards."""
    library, names = LIBRARIES[name], {"__name__": "__main__", "in_copy": False}
    (reader, writer), (parted, parting) = os.pipe(), os.pipe()  # first: what is behind them is the library's
    run(library.use, names)
    if (reason := fork_safety.refusal()) is not None:
        return {"outcome": "refused", "reason": reason}
    fork_safety.prepare()
    if os.fork() == 0:
        if os.fork() == 0:
            fork_safety.part(parting)
            os.write(parting, b"x")
            _restore(library, names, writer)
        os._exit(0)
    os.close(writer)
    os.close(parting)
    os.wait()
    os.read(parted, 1)  # as the host waits until a copy says that it exists
    try:
        original = run(library.again, names)  # while the copy is used
    except Exception as error:
        original = False
        traceback.print_exception(error)
    # Processes that the copy has started have the pipe, too: its end tells nothing.
    answer = os.read(reader, 10_000) if select.select([reader], [], [], _DEADLINE + 5)[0] else b""
    if not answer:
        return {"outcome": "hangs or dies", "original": original}
    return {**json.loads(answer), "original": original}


def _restore(library: Library, names: dict[str, Any], writer: int) -> NoReturn:
    """The parked copy: fork once more, and go on there."""
    if os.fork() == 0:
        faulthandler.register(signal.SIGALRM, chain=True)  # where it hangs
        signal.alarm(_DEADLINE)
        try:
            names["in_copy"] = True
            told = fork_safety.repair()
            start = time.monotonic()
            works = run(library.again, names)
            answer = {"outcome": "works" if works else "wrong", "told": told, "seconds": round(time.monotonic() - start, 2)}
        except BaseException as error:
            traceback.print_exc()
            answer = {"outcome": "fails", "error": repr(error)[:300]}
        os.write(writer, json.dumps(answer).encode())
    os._exit(0)


def verdict(name: str, deadline: float = 2 * _DEADLINE) -> dict[str, Any]:
    """Try a library in a process of its own."""
    with (
        tempfile.TemporaryDirectory() as directory,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as errors,
    ):
        command = [sys.executable, "-m", "fork.trying", "--here", name]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        process = subprocess.Popen(command, cwd=directory, env=env, stdout=out, stderr=errors, start_new_session=True)
        try:
            process.wait(deadline)
        except subprocess.TimeoutExpired:
            errors.write("the deadline has passed")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines, complaints = (read(file) for file in (out, errors))
    answer = json.loads(lines.splitlines()[-1]) if lines.strip() else {"outcome": "fails"}
    return {"library": name, "version": installed(name), **answer, **({"errors": complaints[-1500:]} if complaints else {})}


def surprise(answer: dict[str, Any]) -> str | None:
    """Return what is not as it is written down here, or None."""
    library = LIBRARIES[answer["library"]]
    if library.refused:
        as_expected = library.refused in answer.get("reason", "")
    else:
        told = " ".join(answer.get("told", ()))
        as_expected = (
            answer["outcome"] == "works" and answer["original"] and library.told in told and bool(library.told) == bool(told)
        )
    return None if as_expected else json.dumps(answer, indent=1)


def read(file: IO[str]) -> str:
    """Return what is in a file that is open."""
    file.seek(0)
    return file.read()


def main() -> None:
    """Try libraries and print what came of it."""
    if sys.argv[1:2] == ["--here"]:
        answer = try_out(sys.argv[2])
        print(json.dumps(answer), flush=True)
        os._exit(0)
    for name in sys.argv[1:] or LIBRARIES:
        if installed(name) is not None:
            print(json.dumps(verdict(name)), flush=True)


if __name__ == "__main__":
    main()
