"""Makes, saves and loads the clone of a session, and packs its changes, in a sandbox. Started by path, never imported.

The repository's settings, hooks and filters belong to the session: they run here, and the answer is untrusted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
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
    """Pack the objects of a commit that the project does not have: of HEAD, or of one with all files as they are now.

    If the project does not have the first commit, the pack has that and its history, too.
    """
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
        _git("add", "--all", "--", ".", ":(exclude).cellblock-*", **staging)
        who = {f"GIT_{role}_{part}": "cellblock" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
        commit = _git("commit-tree", "-m", "changes", _git("write-tree", **staging), **made, **who)
    wanted = f"{commit}\n{'^' if request['has_base'] else ''}{request['base']}\n"
    thin = ["--thin"] if request["has_base"] else []
    _git("pack-objects", "--revs", *thin, "--stdout", "--quiet", data=wanted, to=f"{out}/changes.pack", **made)
    return {"commit": commit}


def _extract(out: str, to: str) -> None:
    """Extract the files of a clone, and check that they are a repository of their own."""
    with tarfile.open(f"{out}/files.tar") as archive:
        archive.extraction_filter = lambda member, _path: member  # the sandbox confines it; links may lead out
        archive.extractall(to)  # noqa: S202
    os.unlink(f"{out}/files.tar")
    os.chdir(to)
    for name in (".git", ".git/objects"):
        if os.path.islink(name) or not os.path.isdir(name):
            raise _GitError(f"{name} is not a directory")
    _git("rev-parse", "--is-inside-work-tree")


def _save(out: str) -> dict[str, Any]:
    """Make the files of a clone independent of the project: pack all objects that it refers to."""
    _extract(out, f"{out}/tree")
    _git("repack", "-a", "-d", "-k", "--quiet")
    Path(".git/objects/info/alternates").unlink(missing_ok=True)
    _git("rev-list", "--objects", "--all", "--reflog", "--indexed-objects", "--quiet")
    with tarfile.open(f"{out}/saved.tar", "x", format=tarfile.PAX_FORMAT) as archive:
        for name in os.listdir():
            archive.add(name, filter=_without_owner)
    return {}


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _load(request: dict[str, Any], out: str) -> dict[str, Any]:
    """Extract the files of a saved clone into a new directory of the clone."""
    os.mkdir(request["into"], 0o700)
    _extract(out, request["into"])
    Path(".git/objects/info/alternates").unlink(missing_ok=True)
    with contextlib.suppress(_GitError):  # files have changed
        _git("update-index", "-q", "--refresh")
    return {}


def _main(out: str) -> None:
    request = json.loads(Path(out, "request.json").read_text())
    try:
        os.chdir(request["clone"])
        match request["do"]:
            case "create":
                answer = _create(request)
            case "save":
                answer = _save(out)
            case "load":
                answer = _load(request, out)
            case _:
                answer = _pack(request, out)
    except (_GitError, tarfile.TarError) as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"{error.filename or 'git'}: {error.strerror}"}
    with open(os.path.join(out, "answer.json"), "x", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    _main(sys.argv[1])
