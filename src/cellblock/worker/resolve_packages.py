"""Resolves requirements, or builds a source archive. Runs in a sandbox: started by path, standard library only.

uv resolves if it is there, because it is faster. If it cannot, pip decides. Request and answer are files in the directory of
the argument, and the host believes only what its own index confirms.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

_PIP = (sys.executable, "-I", os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_pip.py"))
_QUIET = ("--isolated", "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--retries=0", "--timeout=60")
_MAX_DEPTH = 8
_PROJECT = re.compile(r"[A-Za-z0-9._-]+")


class _RefusedError(ValueError):
    """Requirements that are not resolved. The message tells why."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def is_local(requirement: str) -> bool:
    """Return whether a requirement is a path of the session."""
    return requirement.startswith((".", "/", "~")) or "/" in requirement.partition("[")[0].partition(" ")[0]


def read_requirements(path: str, depth: int = 0) -> Iterator[str]:
    """Yield the requirements in a file, and in the files that it names with ``-r``.

    Raises:
        ValueError: The file has other options, or URLs.
    """
    if depth > _MAX_DEPTH:
        raise _RefusedError(f"{path}: more than {_MAX_DEPTH} files name each other with -r")
    with open(path, encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", line)
        line = re.sub(r"\s--hash[= ]\S+", "", line).strip()
        if not line:
            continue
        if match := re.fullmatch(r"(?:-r|--requirement)[ =]*(\S.*)", line):
            yield from read_requirements(os.path.join(os.path.dirname(path), match[1]), depth + 1)
        elif line.startswith(("-", "file:")) or "://" in line:
            raise _RefusedError(f"{path} has the line {line[:200]!r}: only requirements and -r are supported in such files")
        else:
            yield os.path.join(os.path.dirname(path), line) if is_local(line) else line


def _installed(paths: Iterable[str] | None) -> dict[str, str]:
    found = metadata.distributions() if paths is None else metadata.distributions(path=list(paths))
    versions: dict[str, str] = {}
    for one in found:
        if (name := one.metadata["Name"]) and one.version:
            versions.setdefault(_normal(name), one.version)
    return versions


class _Resolver:
    """One request to resolve requirements."""

    def __init__(self, request: dict[str, Any], out: str) -> None:
        self._request = request
        self._out = out
        self._wheels = os.path.join(out, "wheels")
        self._options = {*request["options"]}
        self._own = _installed([os.path.join(layer, "site-packages") for layer in request["layers"]])
        base = _installed(None)
        # IPython's packages are loaded already, and another version next to them breaks the kernel.
        fixed = _needed(base, "ipython")
        if "alone" in self._options:  # the session does not see the others
            base = {name: version for name, version in base.items() if name in fixed}
        self._have = {**base, **self._own}
        self._present = self._own if "alone" in self._options else self._have
        if "ignore_installed" in self._options:
            self._present = {}
        if "ignore_installed" in self._options:
            self._have = {name: version for name, version in base.items() if name in fixed}
        elif "upgrade" in self._options:
            named = {_normal(match[0]) for one in request["requirements"] if (match := _PROJECT.match(one))} - fixed
            self._have = {name: version for name, version in self._have.items() if name not in named}

    def resolve(self) -> list[dict[str, str]]:
        """Return the packages to install.

        Raises:
            ValueError, OSError: They cannot be resolved.
        """
        wanted = list(self._request["requirements"])
        for path in self._request["files"]:
            wanted += read_requirements(path)
        wanted = [self._built(one) if is_local(one) else one for one in wanted]
        if not wanted and "alone" in self._options:
            return []
        if not wanted:
            raise _RefusedError("the files name no package")
        self._write("wanted.txt", wanted)
        self._write("constraints.txt", [f"{name}=={version}" for name, version in sorted(self._have.items())])
        found = self._by_uv() if self._request["uv"] and "no_deps" not in self._options else None
        found = self._by_pip(wanted) if found is None else found
        return [
            one for one in found if self._present.get(one["name"]) != one["version"] or one["path"].startswith(self._wheels)
        ]

    def _built(self, requirement: str) -> str:
        """Build a wheel of a local directory or archive."""
        path, extra, _ = requirement.partition("[") if not os.path.exists(requirement) else (requirement, "", "")
        before = {*os.listdir(self._wheels)}
        build(os.path.abspath(os.path.expanduser(path)), self._wheels, self._request["index"])
        (made,) = {*os.listdir(self._wheels)} - before
        extras = f"[{requirement.partition('[')[2]}" if extra else ""
        return f"{os.path.join(self._wheels, made)}{extras}"

    def _by_uv(self) -> list[dict[str, str]] | None:
        lock = os.path.join(self._out, "pylock.toml")
        command = [self._request["uv"], "pip", "compile", "-q", "--no-config", "--no-cache", "--python", sys.executable]
        command += ["--python-preference=only-system", "--no-python-downloads", "--index-strategy=unsafe-best-match"]
        command += ["--prerelease=allow"] if "--pre" in self._request["index"] or "pre" in self._options else []
        command += [option for option in self._request["index"] if option != "--pre"]
        command += ["-c", self._path("constraints.txt"), "--format=pylock.toml", "-o", lock, self._path("wanted.txt")]
        if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            return None
        with open(lock, "rb") as file:
            packages = tomllib.load(file).get("packages", [])
        found = []
        for one in packages:
            archive = one.get("archive") or [*one.get("wheels", ()), one.get("sdist")][0]
            path = None if archive is None else archive.get("url") or archive.get("path")
            if path is None or not path.startswith(("http:", "file:", "/")):
                return None
            found.append(_entry(one["name"], one["version"], path, archive["hashes"].get("sha256", "")))
        return found

    def _by_pip(self, wanted: list[str]) -> list[dict[str, str]]:
        report = self._path("report.json")
        command = [*_PIP, "install", *_QUIET, "--dry-run", "--report", report, *self._request["index"]]
        options = self._options | ({"ignore_installed"} if "alone" in self._options else set())
        for option in ("no_deps", "ignore_installed", "upgrade", "pre"):
            command += [f"--{option.replace('_', '-')}"] if option in options else []
        if hashes := self._request["hashes"] if "no_deps" in self._options else {}:  # pip then takes none of the other files
            self._write("locked.txt", [_with_hashes(one, hashes) for one in wanted])
            wanted = ["-r", self._path("locked.txt")]
        else:
            wanted = ["--", *wanted]
        command += ["-c", self._path("constraints.txt"), *wanted]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise _RefusedError(self._why(done.stdout + done.stderr))
        with open(report, encoding="utf-8") as file:
            installs = json.load(file)["install"]
        found = []
        for one in installs:
            where, data = one["download_info"], one["metadata"]
            digest = where.get("archive_info", {}).get("hashes", {}).get("sha256", "")
            found.append(_entry(data["name"], data["version"], where["url"], digest))
        return found

    def _why(self, text: str) -> str:
        """Return the reason in pip's output."""
        if "DO NOT MATCH THE HASHES" in text:
            names = ", ".join(re.findall(r"^\s+(\S+) from ", text, re.MULTILINE)[:3])
            return f"the index has no file of {names} with a hash in the lock: lock the packages again with this index"
        clashes = re.findall(r"The user requested \(constraint\) ([^=\s]+)==(\S+)", text)
        needs = re.findall(r"^\s+(\S+ \S+ depends on .+|The user requested (?!\(constraint\)).+)$", text, re.MULTILINE)
        if clashes and needs:
            name, version = clashes[0]
            where = "this session" if name in self._own else "its interpreter"
            anyway = "%pip install --ignore-installed, or an environment with base='empty'"
            return f"{where} has {name} {version}: {needs[0].strip()}; to install it anyway: {anyway}"
        if needs:
            return "; ".join(need.strip() for need in needs[:3])
        said = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
        found = next((line for line in reversed(said) if line.startswith("No matching")), said[-1] if said else "")
        if found and (versions := re.search(r"from versions: (?!none)([^)]+)\)", text)):
            found += f" (there is {', '.join(versions[1].split(', ')[-3:])})"
        return found or text.strip()[-500:] or "pip failed without a message"

    def _path(self, name: str) -> str:
        return os.path.join(self._out, name)

    def _write(self, name: str, lines: list[str]) -> None:
        with open(self._path(name), "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def _needed(base: dict[str, str], *names: str) -> set[str]:
    """Return packages with all their dependencies, among those that are installed."""
    found: set[str] = set()
    pending = [name for name in names if name in base]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        lines = [line for line in metadata.requires(name) or () if "extra ==" not in line]
        pending += [_normal(match[0]) for line in lines if (match := _PROJECT.match(line)) and _normal(match[0]) in base]
    return found


def _with_hashes(requirement: str, hashes: dict[str, list[str]]) -> str:
    match = _PROJECT.match(requirement)
    values = hashes[_normal(match[0])] if match else []
    return " ".join([requirement, *(f"--hash=sha256:{value}" for value in values)])


def _entry(name: str, version: str, path: str, digest: str) -> dict[str, str]:
    return {"name": _normal(name), "version": version, "path": path.removeprefix("file://"), "sha256": digest}


def build(source: str, target: str, index: list[str]) -> None:
    """Build a wheel of a source archive or directory.

    Args:
        source: Its absolute path.
        target: The directory of the wheel.
        index: pip's options for the index.

    Raises:
        ValueError: It cannot be built.
    """
    command = [*_PIP, "wheel", *_QUIET, "--no-deps", "--wheel-dir", target, *index, "--", source]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise _RefusedError(f"{os.path.basename(source)} cannot be built: {(done.stderr or done.stdout).strip()[-2000:]}")


def _main(out: str) -> None:
    with open(os.path.join(out, "request.json"), encoding="utf-8") as file:
        request = json.load(file)
    answer: dict[str, Any] = {}
    try:
        if "archive" in request:
            build(os.path.join(out, request["archive"]), os.path.join(out, "wheels"), request["index"])
        else:
            answer["packages"] = _Resolver(request, out).resolve()
    except (ValueError, KeyError, metadata.PackageNotFoundError) as error:
        answer["error"] = str(error)
    except OSError as error:
        answer["error"] = f"{error.filename or 'a program'}: {error.strerror}"
    with open(os.path.join(out, "answer.json"), "x", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    _main(sys.argv[1])
