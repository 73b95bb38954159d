"""Makes the clone of a session, and packs its changes, in a sandbox. Started by path, never imported.

The repository's settings, hooks and filters belong to the session: they run here, and the answer is untrusted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_SHOWN = 2000


class _GitError(Exception):
    """git has failed."""


def _git(*arguments: str, data: str = "", to: str = "", **variables: str) -> str:
    """Run git in the current directory, and return its output.

    Args:
        arguments: Its arguments.
        data: Its standard input.
        to: The file for its output.
        variables: Environment variables.

    Raises:
        _GitError: It fails.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # The copy of a branch is in another clone.
    environment["GIT_CEILING_DIRECTORIES"] = os.path.dirname(os.getcwd())
    command = ["git", "-c", "safe.directory=*", *arguments]
    output = open(to, "xb") if to else subprocess.PIPE  # noqa: SIM115 - closed with this process
    try:
        done = subprocess.run(
            command, input=data.encode(), stdout=output, stderr=subprocess.PIPE, env={**environment, **variables}, check=False
        )
    except FileNotFoundError:
        raise _GitError("the sandbox has no git: install git on this machine") from None
    if done.returncode:
        raise _GitError(done.stderr[-_SHOWN:].decode(errors="replace").strip() or f"git {arguments[0]} failed")
    return "" if to else done.stdout.decode(errors="surrogateescape").strip()


def _create(request: dict[str, Any]) -> dict[str, Any]:
    _git("clone", "--quiet", "--shared", "--no-checkout", "--template=", request["origin"], ".")
    for name, value in request["settings"].items():
        _git("config", name, value)
    # The host creates such files for a moment.
    Path(".git/info").mkdir(exist_ok=True)
    Path(".git/info/exclude").write_text(".cellblock-*\n")
    _git("checkout", "--quiet", "-b", request["branch"], request["base"])
    return {}


def _pack(request: dict[str, Any], out: str) -> dict[str, Any]:
    """Pack the objects of a commit that the project does not have: of HEAD, or of one with all files as they are now."""
    commit = _git("rev-parse", "--verify", "HEAD^{commit}")
    made: dict[str, str] = {}
    if request["uncommitted"]:
        # Nothing is written to the clone.
        own, index = (os.path.abspath(_git("rev-parse", "--git-path", name)) for name in ("objects", "index"))
        made = {"GIT_OBJECT_DIRECTORY": f"{out}/objects", "GIT_ALTERNATE_OBJECT_DIRECTORIES": own}
        staging = {**made, "GIT_INDEX_FILE": f"{out}/index"}
        os.mkdir(f"{out}/objects")
        if os.path.exists(index):
            shutil.copyfile(index, f"{out}/index")
        _git("add", "--all", **staging)
        who = {f"GIT_{role}_{part}": "cellblock" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        commit = _git("commit-tree", "-m", "changes", _git("write-tree", **staging), **made, **who)
    wanted = f"{commit}\n^{request['base']}\n"
    _git("pack-objects", "--revs", "--thin", "--stdout", "--quiet", data=wanted, to=f"{out}/changes.pack", **made)
    return {"commit": commit}


def _main(out: str) -> None:
    request = json.loads(Path(out, "request.json").read_text())
    try:
        answer = _create(request) if request["do"] == "create" else _pack(request, out)
    except _GitError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"{error.filename or 'git'}: {error.strerror}"}
    with open(os.path.join(out, "answer.json"), "x", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    _main(sys.argv[1])
