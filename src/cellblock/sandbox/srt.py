"""srt, the command of Anthropic's sandbox-runtime, as a sandbox: its settings, where it is, and what is missing for it.

Its settings are JSON. They are made from a `Policy`, or are the user's own, which are passed to srt unchanged.
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
from cellblock.sandbox import plan, seccomp
from cellblock.sandbox.policy import Filesystem, Network, Policy
from cellblock.sandbox.probe import Facts
from cellblock.wire.control import Setup

PACKAGES = "CELLBLOCK_PACKAGES"
"""The variable that tells what runs inside where packages of sessions lie."""

PACKAGE = "@anthropic-ai/sandbox-runtime@0.0.78"

_SYSTEM_PATH = "/opt/homebrew/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What srt sets for its command so that programs find its proxies. It holds a token, good for this one srt's proxies only.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY")

# What srt protects by itself. It puts there what is missing, and fails where it cannot: in a directory that is read-only.
_OWN_PLACES = {".git": ("config", "hooks"), ".claude": ("agents", "commands")}

# Makes srt's own directory, $0, and removes it when srt has ended, however that came about: the host may be gone by then.
# Ignore the signal that we send to srt. If srt is killed, what it has started would go on without it.
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
        """Take settings of srt as they are.

        Args:
            data: What sandbox-runtime documents, as JSON data. ``resources`` is ours, as in `Policy.parse`.
            source: What to call it in errors.

        Raises:
            InvalidInputError: It is not a JSON object. srt itself checks its keys.
        """
        if not isinstance(data, dict):
            raise InvalidInputError(f"{source} must be an object, not {type(data).__name__}")
        ours = Policy.parse({"resources": data.get("resources", {})}, source)
        try:
            given = json.dumps({key: value for key, value in data.items() if key != "resources"}, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"{source} is not valid JSON: {error}") from error
        return cls(resources=ours.resources, given=given)

    def narrow(self, other: Policy) -> Policy:
        """See `Policy.narrow`. Nobody but srt knows what its settings allow, so that they cannot be compared.

        Raises:
            InvalidInputError: The other one is different.
        """
        if other != self:
            raise InvalidInputError(
                "settings of srt cannot be compared with another policy or narrowed: pass them to the host, "
                "and no policy to its sessions"
            )
        return self

    @property
    def rules(self) -> Filesystem:
        """See `Policy.rules`. What srt or a native sandbox protects without being told is protected, too."""
        files = json.loads(self.given).get("filesystem")
        read, write, deny_read, deny_write = (
            _texts(files, key) for key in ("allowRead", "allowWrite", "denyRead", "denyWrite")
        )
        own = self.filesystem
        return Filesystem(read, write, (*deny_read, *own.deny_read), (*deny_write, *own.deny_write))

    @property
    def shown(self) -> tuple[str, ...]:
        """See `Policy.shown`. To srt, what can be written can be masked."""
        return self.rules.read

    def denied_like(self, names: Iterable[str], workspace: str, home: str) -> re.Pattern[str] | None:
        """See `Policy.denied_like`. A denial with ``*``, ``?`` or ``[`` is a pattern to srt."""
        found = [_pattern(name, workspace, home) for name in names if any(mark in name for mark in "*?[")]
        return re.compile("|".join(found), re.IGNORECASE) if found else None

    def reaches(self) -> bool:
        """Whether something on the network can be reached."""
        network = json.loads(self.given).get("network")
        return isinstance(network, dict) and bool(network.get("allowedDomains"))


@dataclass(frozen=True, slots=True)
class SrtDirectories:
    """The directories of one run of srt.

    Attributes:
        workspace: The directory that it runs in, and that relative paths are relative to.
        private: Its own directory, which is made when it starts and removed when it has ended: ``run`` is for srt's sockets,
            ``tmp`` and ``home`` are for the code, which reads ``packages``.
        readable: What must be readable for anything to work: directories of the interpreter, and of srt itself.
        secret: What of the system is not for everybody to read, and would be for root.
    """

    workspace: str
    private: str
    readable: tuple[str, ...]
    secret: tuple[str, ...]


def entries(path: str) -> Sequence[str] | None:
    """Return the names in a directory, ``("",)`` for anything else, and None if there is nothing."""
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
    """Return the settings to give to srt.

    Args:
        policy: What is asked.
        facts: What this machine has.
        place: What this run of srt has around it.
        look: As `entries`. Only what is there is protected: srt makes an empty file in place of what is not.
        platform: As `sys.platform`.
    """
    if isinstance(policy, SrtPolicy):
        return _with_own_place(json.loads(policy.given), place)
    files = policy.filesystem
    hidden: list[str] = []
    if not files.everything:
        # On macOS the system itself needs corners of the disk that nobody has listed.
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
            "denyRead": [*hidden, *(path for path in files.deny_read if path != "/"), *place.secret],
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
    """Return a session's policy, changed for pip: it sees what the session sees, and changes and reaches other things.

    Args:
        policy: The session's.
        target: The only directory that can be written.
        readable: What can be read besides.
        hosts: What can be reached, as srt has it in ``allowedDomains``, and nothing else.
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
    """Return what to run, with `environment`, to have srt run a shell's command line in its sandbox.

    Args:
        place: What it has around it.
        srt: Where it is.
        settings_path: Where it finds its settings.
        inner: From `command_line`.
    """
    return ["/bin/sh", "-c", _KEEPER, place.private, srt, "--settings", settings_path, "-c", inner]


def command_line(policy: Policy, place: SrtDirectories, arguments: Sequence[str]) -> str:
    """Return the command line that starts a program inside.

    srt must run in the workspace, its command must not: an interpreter would take modules from there.
    """
    home = "" if isinstance(policy, SrtPolicy) else f"HOME={shlex.quote(f'{place.private}/home')} "
    packages = f"{PACKAGES}={shlex.quote(f'{place.private}/packages')} "
    return f"cd / && {home}{packages}exec {shlex.join(arguments)}"


def environment(facts: Facts, place: SrtDirectories) -> dict[str, str]:
    """Return the environment of srt. Nothing of the host's gets into it but where its commands are."""
    found = (where(name) for name in _commands(sys.platform))
    directories = dict.fromkeys(os.path.dirname(path) for path in found if path is not None)
    return {
        "PATH": os.pathsep.join([*directories, _SYSTEM_PATH]),
        "HOME": facts.home,
        "TMPDIR": f"{place.private}/run",
        "CLAUDE_CODE_TMPDIR": f"{place.private}/tmp",  # what the command gets as TMPDIR
    }


def complete(setup: Setup, policy: Policy, facts: Facts) -> Setup:
    """Return what a kernel under srt is told: what every kernel is told, and what srt does not do.

    Args:
        setup: What every kernel is told.
        policy: What this one may do.
        facts: What this machine has.
    """
    reaches = policy.reaches() if isinstance(policy, SrtPolicy) else bool(policy.network.allow)
    proxies = [*_PROXIES, *(name.lower() for name in _PROXIES)] if reaches else []
    restrictions = None
    if sys.platform == "linux" and seccomp.supported(facts.machine):
        # Of a native sandbox, what a process can do to itself. Which local sockets there can be is for srt's filter to say.
        restrictions = plan.restrictions(Policy(resources=policy.resources), facts)
    return replace(setup, inherit=("HOME", "TMPDIR", *proxies), restrictions=restrictions)


def where(name: str) -> str | None:
    """Return where a command is, or None."""
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)


def own_directories() -> tuple[str, ...]:
    """Return the directories of what srt runs inside of its sandbox."""
    found = []
    if (srt := where("srt")) is not None:
        # …/sandbox-runtime/dist/cli.js; what applies its filter lies beside.
        found.append(os.path.dirname(os.path.dirname(os.path.realpath(srt))))
    for name in ("socat", "bash"):
        if (path := where(name)) is not None:
            found += [os.path.dirname(path), os.path.dirname(os.path.realpath(path))]
    return tuple(dict.fromkeys(found))


def closed_to_others(root: str = "/etc") -> tuple[str, ...]:
    """Return what in a directory of the system is not readable by everybody; root could read it, in srt's sandbox, too."""
    closed: list[str] = []
    pending = [root]
    for directory in pending:  # grows while it is walked
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
    """Return what srt needs and this machine does not have, each with how to get it. Nothing: it can be tried.

    Args:
        find: Where a command is.
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
    """Return a pattern of srt's settings as a regular expression, as srt translates it."""
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
    """Return a list of the settings for files; srt itself says what is wrong with it."""
    found = files.get(key) if isinstance(files, dict) else None
    return tuple(text for text in found if isinstance(text, str) and text) if isinstance(found, list) else ()


def _with_own_place(given: dict[str, Any], place: SrtDirectories) -> dict[str, Any]:
    """Add srt's own directory to somebody's settings; kernels need a place for temporary files."""
    files = given.get("filesystem")
    if not isinstance(files, dict):
        return given  # srt will say what is wrong with it
    for key, paths in (("allowWrite", (f"{place.private}/tmp",)), ("allowRead", _readable(place))):
        if isinstance(files.get(key, []), list):
            files[key] = [*files.get(key, []), *paths]
    return given


def _readable(place: SrtDirectories) -> tuple[str, str]:
    return f"{place.private}/run", f"{place.private}/packages"


def _protected(pattern: str, path: str, look: Callable[[str], Sequence[str] | None]) -> list[str]:
    """Return what to deny to keep a path from being written, of what is there."""
    names = look(path)
    if names is None:
        return []
    own = _OWN_PLACES.get(os.path.basename(path), ())
    if names == ("",) or {*own} <= {*names}:
        return [pattern]
    return [f"{pattern}/{name}" for name in names]


def _absolute(path: str, workspace: str, home: str) -> str:
    return home + path[1:] if path.startswith("~") else os.path.join(workspace, path)
