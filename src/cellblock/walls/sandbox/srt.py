"""srt, the command of Anthropic's sandbox-runtime, as a sandbox: its settings, its location, and its requirements.

Its settings are JSON, either created from a `Policy` or the user's own, which are passed to srt unchanged.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from cellblock.errors import InvalidInputError
from cellblock.walls.linux import seccomp
from cellblock.walls.sandbox import plan
from cellblock.walls.sandbox.policy import Filesystem, Network, Policy
from cellblock.walls.sandbox.probe import Facts
from cellblock.wire.control import Setup

PACKAGES = "CELLBLOCK_PACKAGES"
"""The variable with the directory for packages of sessions, inside."""

PACKAGE = "@anthropic-ai/sandbox-runtime@0.0.78"

_SYSTEM_PATH = "/opt/homebrew/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Variables that srt sets so that programs find its proxies. They contain a token for only this srt's proxies.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY")

# Paths that srt always protects. It creates missing ones, and fails if it cannot: in a read-only directory.
_OWN_PLACES = {".git": ("config", "hooks"), ".claude": ("agents", "commands")}

# Creates srt's own directory, $0, and removes it when srt has ended for any reason: the host may be gone by then. Ignores the
# signal that we send to srt. If srt is killed, its processes would continue without it.
_KEEPER = """\
trap : TERM INT
umask 077
mkdir "$0" "$0/run" "$0/tmp" "$0/home" "$0/packages" || exit
"$@"
code=$?
kill 0
find "$0" -type d ! -perm -700 -exec chmod u+rwx {} \\;
rm -rf "$0"
exit $code
"""


@dataclass(frozen=True, slots=True)
class SrtPolicy(Policy):
    """Settings of srt with srt's own meaning, including unknown keys.

    Attributes:
        given: The settings, as JSON.
    """

    given: str = ""

    @classmethod
    def parse(cls, data: object, source: str = "the sandbox configuration") -> Self:
        """Accept settings of srt unchanged.

        Args:
            data: The settings that sandbox-runtime documents, as JSON data. ``resources`` is ours, as in `Policy.parse`.
            source: Its name in errors.

        Raises:
            InvalidInputError: It is not a JSON object. srt itself checks its keys.
        """
        if not isinstance(data, dict):
            raise InvalidInputError(f"{source} must be an object, not {type(data).__name__}")
        ours = Policy.parse({"resources": data.get("resources", {})}, source)
        network = data.get("network")
        if isinstance(network, dict) and "http" in network:
            raise InvalidInputError(f"{source}: srt has no network.http: request lines need isolate='native'")
        try:
            own = ("defaults", "resources")
            given = json.dumps({key: value for key, value in data.items() if key not in own}, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"{source} is not valid JSON: {error}") from error
        return cls(resources=ours.resources, given=given)

    def widened(
        self,
        memory: int | None = None,
        read: Iterable[str] = (),
        write: Iterable[str] = (),
        hosts: Iterable[str] = (),
        http: Iterable[str] = (),
        devices: Iterable[str] = (),
    ) -> Self:
        """Add paths and hosts to the settings. Request lines and devices stay in the policy, where they are refused."""
        given = json.loads(self.given)
        for part, key, more in (
            ("filesystem", "allowRead", read),
            ("filesystem", "allowWrite", write),
            ("network", "allowedDomains", hosts),
        ):
            if more := [*more]:
                section = given.setdefault(part, {})
                section[key] = [*section.get(key, []), *more]
        resources = self.resources if memory is None else replace(self.resources, memory=memory)
        network = replace(self.network, http=(*self.network.http, *http))
        settings = json.dumps(given, sort_keys=True)
        return replace(self, given=settings, resources=resources, network=network, devices=(*self.devices, *devices))

    def narrow(self, other: Policy) -> Policy:
        """Accept only an equal policy: only srt knows what its settings allow, so they cannot be compared.

        Raises:
            InvalidInputError: The other one is different.
        """
        if other != self:
            raise InvalidInputError(
                "settings of srt cannot be compared with another policy: pass them to the host, and no policy to its sessions"
            )
        return self

    @property
    def rules(self) -> Filesystem:
        """The files that a session can see and change, including paths that srt or a native sandbox protects by default."""
        files = json.loads(self.given).get("filesystem")
        read, write, deny_read, deny_write = (
            _texts(files, key) for key in ("allowRead", "allowWrite", "denyRead", "denyWrite")
        )
        own = self.filesystem
        return Filesystem(read, write, (*deny_read, *own.deny_read), (*deny_write, *own.deny_write))

    @property
    def shown(self) -> tuple[str, ...]:
        """Paths that can be read even if a parent directory is masked. For srt, writable paths can be masked."""
        return self.rules.read

    def denied_like(self, names: Iterable[str], workspace: str, home: str) -> re.Pattern[str] | None:
        """Return a pattern of paths that some denials match. For srt, a denial with ``*``, ``?`` or ``[`` is a pattern."""
        found = [_pattern(name, workspace, home) for name in names if any(mark in name for mark in "*?[")]
        return re.compile("|".join(found), re.IGNORECASE) if found else None

    def reaches(self) -> bool:
        """Return whether any host can be reached."""
        network = json.loads(self.given).get("network")
        return isinstance(network, dict) and bool(network.get("allowedDomains"))


@dataclass(frozen=True, slots=True)
class SrtDirectories:
    """The directories of one run of srt.

    Attributes:
        workspace: The working directory, and the base of relative paths.
        private: Its own directory, created at its start and removed after its end: ``run`` is for srt's sockets, ``tmp`` and
            ``home`` are for the code, which reads ``packages``.
        readable: Paths that must always be readable: directories of the interpreter, and of srt itself.
        secret: System paths that are not world-readable, but that root could read.
    """

    workspace: str
    private: str
    readable: tuple[str, ...]
    secret: tuple[str, ...]


def entries(path: str) -> Sequence[str] | None:
    """Return the names in a directory, ``("",)`` for anything else, and None if it does not exist."""
    try:
        return tuple(sorted(os.listdir(path)))
    except FileNotFoundError:
        return ("",) if os.path.lexists(path) else None
    except OSError:
        return ("",)


def settings(
    policy: Policy,
    facts: Facts,
    place: SrtDirectories,
    *,
    look: Callable[[str], Sequence[str] | None] = entries,
    platform: str = sys.platform,
) -> dict[str, Any]:
    """Return the settings for srt.

    Args:
        policy: The policy.
        facts: Facts about this machine.
        place: The directories of this run of srt.
        look: As `entries`. Only existing paths are protected: srt creates an empty file for a missing one.
        platform: As `sys.platform`.
    """
    if isinstance(policy, SrtPolicy):
        return _with_own_place(json.loads(policy.given), place)
    files = policy.filesystem
    hidden: list[str] = []
    if not files.everything:
        # On macOS the system itself needs parts of the disk that are not documented.
        hidden = ["/"] if platform == "linux" else ["/Users", "/Volumes"]
    system = [path for path, _ in facts.system] + ["/etc"] if hidden == ["/"] else []
    protected = [
        found for path in files.deny_write for found in _protected(path, _absolute(path, place.workspace, facts.home), look)
    ]
    return {
        "network": {
            "allowedDomains": [*policy.network.allow],
            "deniedDomains": [*policy.network.deny],
            "allowLocalBinding": True,
            "allowAllUnixSockets": policy.unix_sockets,
        },
        "filesystem": {
            "denyRead": [*hidden, *_masked(files, place.workspace, facts), *place.secret],
            "allowRead": [
                *system,
                place.workspace,
                *place.readable,
                *_readable(place),
                *(path for path in files.read if path != "/"),
            ],
            "allowWrite": [*files.write, f"{place.private}/tmp", f"{place.private}/home"],
            "denyWrite": protected,
        },
        "enableWeakerNestedSandbox": policy.weaker_proc,
    }


def for_installing(policy: Policy, target: str, readable: Iterable[str], hosts: Iterable[str]) -> Policy:
    """Return a session's policy adapted for pip: the same readable files, with other writable files and hosts.

    Args:
        policy: The session's policy.
        target: The only writable directory.
        readable: More readable paths.
        hosts: The only hosts that can be reached, in the format of ``allowedDomains``.
    """
    if not isinstance(policy, SrtPolicy):
        seen = (*policy.filesystem.read, *policy.filesystem.write, *readable)
        files = replace(policy.filesystem, read=seen, write=(target,), deny_write=())
        return replace(policy, filesystem=files, network=Network(tuple(hosts)))
    given = json.loads(policy.given)
    for part, changes in (
        ("filesystem", {"allowWrite": [target], "denyWrite": []}),
        ("network", {"allowedDomains": [*hosts], "deniedDomains": []}),
    ):
        given[part] = {**given[part], **changes}
    given["filesystem"]["allowRead"] = [*given["filesystem"].get("allowRead", []), *readable]
    return replace(policy, given=json.dumps(given, sort_keys=True))


def command(place: SrtDirectories, srt: str, settings_path: str, inner: str) -> list[str]:
    """Return the command, for use with `environment`, that makes srt run a shell command line in its sandbox.

    Args:
        place: The directories of this run.
        srt: The path of srt.
        settings_path: The path of its settings.
        inner: From `command_line`.
    """
    return ["/bin/sh", "-c", _KEEPER, place.private, srt, "--settings", settings_path, "-c", inner]


def command_line(policy: Policy, place: SrtDirectories, arguments: Sequence[str]) -> str:
    """Return the command line that starts a program inside.

    srt must run in the workspace, but its command must not: an interpreter would import modules from there.
    """
    home = "" if isinstance(policy, SrtPolicy) else f"HOME={shlex.quote(f'{place.private}/home')} "
    packages = f"{PACKAGES}={shlex.quote(f'{place.private}/packages')} "
    return f"cd / && {home}{packages}exec {shlex.join(arguments)}"


def environment(facts: Facts, place: SrtDirectories) -> dict[str, str]:
    """Return the environment of srt. From the host's environment, it has only the directories of its commands."""
    found = (where(name) for name in _commands(sys.platform))
    directories = dict.fromkeys(os.path.dirname(path) for path in found if path is not None)
    return {
        "PATH": os.pathsep.join([*directories, _SYSTEM_PATH]),
        "HOME": facts.home,
        "TMPDIR": f"{place.private}/run",
        "CLAUDE_CODE_TMPDIR": f"{place.private}/tmp",  # becomes the command's TMPDIR
    }


def complete(setup: Setup, policy: Policy, facts: Facts) -> Setup:
    """Return the setup of a kernel under srt: the common setup, plus what srt does not do.

    Args:
        setup: The common setup.
        policy: The policy.
        facts: Facts about this machine.
    """
    reaches = policy.reaches() if isinstance(policy, SrtPolicy) else bool(policy.network.allow)
    proxies = [*_PROXIES, *(name.lower() for name in _PROXIES)] if reaches else []
    restrictions = None
    if sys.platform == "linux" and seccomp.supported(facts.machine):
        # The part of a native sandbox that a process can apply to itself. Local sockets are left to srt's filter.
        restrictions = plan.restrictions(Policy(resources=policy.resources), facts)
    return replace(setup, inherit=("HOME", "TMPDIR", *proxies), restrictions=restrictions)


def where(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)


def own_directories() -> tuple[str, ...]:
    """Return the directories of programs that srt runs inside its sandbox."""
    found = []
    if (srt := where("srt")) is not None:
        # …/sandbox-runtime/dist/cli.js, next to the program that applies its filter.
        found.append(os.path.dirname(os.path.dirname(os.path.realpath(srt))))
    for name in ("socat", "bash"):
        if (path := where(name)) is not None:
            found += [os.path.dirname(path), os.path.dirname(os.path.realpath(path))]
    return tuple(dict.fromkeys(found))


def closed_to_others(root: str = "/etc") -> tuple[str, ...]:
    """Return the paths in a system directory that are not world-readable. Root could read them, even in srt's sandbox."""
    closed: list[str] = []
    pending = [root]
    for directory in pending:  # grows during the iteration
        try:
            entries = [*os.scandir(directory)]
        except OSError:
            continue
        for entry in entries:
            if entry.is_symlink():
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if not mode & stat.S_IROTH:
                closed.append(entry.path)
            elif stat.S_ISDIR(mode):
                pending.append(entry.path)
    return tuple(sorted(closed))


def missing(find: Callable[[str], str | None] = where, platform: str = sys.platform) -> tuple[str, ...]:
    """Return what srt needs and this machine lacks, each with installation advice; empty if srt can be tried.

    Args:
        find: Returns the path of a command.
        platform: As `sys.platform`.
    """
    lacking: list[str] = []
    if find("srt") is None or find("node") is None:
        node = "" if find("npm") else "install Node.js 20 or newer, which brings npm, then "
        lacking.append(f"the srt command is not installed: {node}'npm install -g {PACKAGE}'")
    needed = [name for name in _commands(platform) if name in _PACKAGES and find(name) is None]
    if needed:
        packages = " ".join(_PACKAGES[name] for name in needed)
        install = "apt-get install -y" if platform == "linux" else "brew install"
        lacking.append(f"srt needs {', '.join(needed)}: '{install} {packages}', or the like")
    if find("bash") is None:
        lacking.append("srt needs bash: install it")
    return tuple(lacking)


_PACKAGES = {"bwrap": "bubblewrap", "socat": "socat", "rg": "ripgrep"}


def _commands(platform: str) -> Iterable[str]:
    return ("srt", "node", "rg", "bash", *(("bwrap", "socat") if platform == "linux" else ()))


_WILD = re.compile(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _pattern(name: str, workspace: str, home: str) -> str:
    """Translate a pattern in srt's settings to a regular expression, as srt does."""
    name = name.removesuffix("/**") or "/"
    around = "" if name.startswith("/") else re.escape(home) if name.startswith("~") else re.escape(f"{workspace}/")
    parts = _WILD.split(name.removeprefix("~").removeprefix("./"))
    translated = [_MEANING.get(part) or (_class(part) if number % 2 else re.escape(part)) for number, part in enumerate(parts)]
    return around + "".join(translated)


def _class(part: str) -> str:
    try:
        re.compile(part)
    except re.error:
        return re.escape(part)
    return part


def _texts(files: object, key: str) -> tuple[str, ...]:
    """Return a list in the settings for files. srt itself reports errors in it."""
    found = files.get(key) if isinstance(files, dict) else None
    return tuple(text for text in found if isinstance(text, str) and text) if isinstance(found, list) else ()


def _with_own_place(given: dict[str, Any], place: SrtDirectories) -> dict[str, Any]:
    """Add srt's own directory to a user's settings, because kernels need a directory for temporary files."""
    files = given.get("filesystem")
    if not isinstance(files, dict):
        return given  # srt will report the error
    for key, paths in (("allowWrite", (f"{place.private}/tmp",)), ("allowRead", _readable(place))):
        if isinstance(files.get(key, []), list):
            files[key] = [*files.get(key, []), *paths]
    return given


def _readable(place: SrtDirectories) -> tuple[str, str]:
    return f"{place.private}/run", f"{place.private}/packages"


def _protected(pattern: str, path: str, look: Callable[[str], Sequence[str] | None]) -> list[str]:
    """Return which existing paths to deny to protect a path from writes."""
    names = look(path)
    if names is None:
        return []
    own = _OWN_PLACES.get(os.path.basename(path), ())
    if names == ("",) or {*own} <= {*names}:
        return [pattern]
    return [f"{pattern}/{name}" for name in names]


def _masked(files: Filesystem, workspace: str, facts: Facts) -> Iterable[str]:
    """Return the masked paths, with the policy's own paths unchanged."""
    own = [path for path in files.deny_read if path != "/"]
    same = {*plan.resolve_paths(own, workspace, facts)}
    return (*own, *(path for path in plan.masked_paths(files, workspace, facts) if path not in same))


def _absolute(path: str, workspace: str, home: str) -> str:
    return home + path[1:] if path.startswith("~") else os.path.join(workspace, path)
