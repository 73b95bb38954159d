"""Installs packages for one session: pip runs inside its sandbox, and reaches the package index and nothing else."""

from __future__ import annotations

import asyncio
import configparser
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cellblock.egress.network import SandboxNetwork
from cellblock.errors import InvalidInputError
from cellblock.host.checks import Isolate
from cellblock.host.srt import run_apart
from cellblock.leftovers import find_places, make_place, remove_abandoned, remove_place
from cellblock.sandbox import srt
from cellblock.sandbox.policy import Network, Policy
from cellblock.sandbox.probe import Facts
from cellblock.wire.sandbox import Bind, Step

if TYPE_CHECKING:
    from cellblock.host.kernel_spec import RunningKernel

PLACE = "/tmp/.packages"  # in the session's own /tmp
"""Where a sandboxed session finds its own packages: every sandbox can have a directory made there."""

# What of pip's settings decides where packages come from.
_SETTINGS = (
    "index-url",
    "extra-index-url",
    "find-links",
    "no-index",
    "trusted-host",
    "cert",
    "timeout",
    "default-timeout",
    "pre",
)
_PREFIX = "cellblock-packages-"


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """Where the host's pip takes packages from.

    Attributes:
        settings: pip's own settings, as environment variables for it.
        hosts: Patterns of what it has to reach.
        directories: Local directories that it reads.
    """

    settings: tuple[tuple[str, str], ...]
    hosts: tuple[str, ...]
    directories: tuple[str, ...]

    @classmethod
    def configured(cls, environment: Mapping[str, str], files: Iterable[Path]) -> PackageIndex:
        """Return what pip is configured for.

        Args:
            environment: The host's environment, for its ``PIP_`` variables, which win.
            files: pip's configuration files; later ones win.
        """
        values: dict[str, str] = {}
        for file in files:
            parser = configparser.RawConfigParser()
            try:
                parser.read(file, encoding="utf-8")
            except (configparser.Error, UnicodeDecodeError):
                continue  # pip itself will complain of it, in its own words
            for section in ("global", "install"):
                if parser.has_section(section):
                    values |= {name.replace("_", "-"): value for name, value in parser.items(section)}
        for name, value in environment.items():
            if name.startswith("PIP_"):
                values[name[4:].lower().replace("_", "-")] = value
        kept = {name: value for name, value in values.items() if name in _SETTINGS}
        urls = [url for name in ("index-url", "extra-index-url", "find-links") for url in kept.get(name, "").split()]
        hosts = [] if kept.get("no-index", "").lower() in ("1", "true", "yes", "on") else _hosts(urls)
        if hosts is not None and "index-url" not in kept and "no-index" not in kept:
            hosts += _default_index()
        settings = tuple((f"PIP_{name.upper().replace('-', '_')}", value) for name, value in kept.items())
        return cls(settings, tuple(dict.fromkeys(hosts)), tuple(_directories(urls, kept.get("cert"))))

    async def network(self) -> Network:
        """Return what may be reached while pip runs: the index, wherever it lies, as that is what its user configured."""
        allowed: list[str] = []
        for name in self.hosts:
            host, _, port = name.partition(":")
            allowed.append(f"{name} private")
            # A mirror may have an address that no rule for a name can allow, such as one reserved for documentation.
            try:
                found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError:
                continue  # pip will say so
            for address in dict.fromkeys(str(entry[4][0]) for entry in found):
                shown = f"[{address}]" if ":" in address else address
                allowed.append(f"{shown}:{port}" if port else shown)
        return Network(allow=tuple(dict.fromkeys(allowed)))


def _default_index() -> tuple[str, ...]:
    """Return the hosts of the index that pip uses where nobody says another, as pip itself has them."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return ()  # without pip there is nothing to install with, unless a session's own interpreter is set up for more
    return PyPI.netloc, PyPI.file_storage_domain


def _hosts(urls: Iterable[str]) -> list[str]:
    found = []
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            found.append(f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname)
    return found


def _directories(urls: Iterable[str], certificates: str | None) -> list[str]:
    paths = [
        urlsplit(url).path if url.startswith("file:") else url for url in urls if "://" not in url or url.startswith("file:")
    ]
    # An index on disk names files beside it, mostly: ../files next to simple.
    paths = [os.path.dirname(path.rstrip("/")) if path.rstrip("/").endswith("/simple") else path for path in paths]
    if certificates is not None:
        paths.append(certificates)
    return [os.path.realpath(path) for path in dict.fromkeys(paths) if os.path.isabs(path) and os.path.exists(path)]


def configuration_files(environment: Mapping[str, str], home: str) -> list[Path]:
    """Return pip's configuration files, in the order in which they count, as pip documents it."""
    config = environment.get("XDG_CONFIG_HOME") or f"{home}/.config"
    files = [
        Path("/etc/pip.conf"),
        Path("/etc/xdg/pip/pip.conf"),
        Path(home, ".pip", "pip.conf"),
        Path(config, "pip", "pip.conf"),
    ]
    files.append(Path(sys.prefix, "pip.conf"))
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    return [*files, Path(named)] if named else files


def name_places() -> str:
    """Return what the paths of the packages of one host's sessions begin with: nobody can guess it, and nothing is made."""
    return os.path.join(os.path.abspath(tempfile.gettempdir()), f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}-")


def remove_places_of_the_dead() -> None:
    """Remove the packages of hosts that were killed together with what should have removed them. It may take a while."""
    for place in find_places(os.path.join(os.path.abspath(tempfile.gettempdir()), _PREFIX)):
        remove_abandoned(place)


class SessionPackages:
    """The packages of one session: where they lie, and how they get there.

    Attributes:
        place: Their directory outside.
        inside: Their directory as the session sees it.
    """

    def __init__(self, place: str, interpreter: str, env: Mapping[str, str], cwd: str, *, isolate: Isolate) -> None:
        """Take note of their place, and make nothing yet.

        Args:
            place: A path where nothing is.
            interpreter: The interpreter whose pip installs.
            env: The session's environment, in which pip runs.
            cwd: The session's directory.
            isolate: How the session is kept in.
        """
        self.place = place
        self._made = False
        self._held: int | None = None
        # Where srt's own directory lies is known inside when there is one.
        self.inside = {"native": PLACE, "srt": secrets.token_hex(8), "none": place}[isolate]
        self._interpreter = interpreter
        self._env = env
        self._cwd = cwd
        self._isolate = isolate

    def prepare(self) -> None:
        """Make what has to be there before a kernel is.

        Where nothing is mounted that is nothing: most sessions install nothing, and what was never made cannot be left behind.
        """
        if self._isolate == "native":
            self._make()

    def _make(self) -> None:
        if not self._made:
            self._held = make_place(self.place)
            self._made = True

    def mounts(self, index: PackageIndex, policy: Policy) -> tuple[Step, ...]:
        """Return the steps that let a sandboxed session see its packages, and the index where that is a directory."""
        # Where everything is readable, all but what lies in /tmp is there already, and nothing can be made elsewhere.
        everything = policy.filesystem.everything
        local = [
            Bind(path, path, "ro", optional=True)
            for path in index.directories
            if (path.startswith("/tmp/") if everything else not path.startswith(("/usr/", "/etc/ssl/")))
        ]
        return (Bind(self.place, self.inside, "rw"), *local)

    async def install(self, kernel: RunningKernel, arguments: tuple[str, ...], index: PackageIndex, facts: Facts) -> int:
        """Have pip install something, inside the session, and return its exit status.

        Args:
            kernel: The session's kernel.
            arguments: pip's, behind ``install``.
            index: Where packages come from.
            facts: What this machine has.

        Raises:
            InvalidInputError: The arguments name nothing, or another place to take packages from or to put them.
            SandboxError, LaunchError: No sandbox could be made for it, where it needs one of its own.
        """
        _check(arguments)
        # Not what lies in the session's directory or home under the name of pip.
        command = [self._interpreter, "-P", "-s", "-m", "pip", "install"]
        options = ["--no-input", *arguments]
        env = {**self._env, **dict(index.settings), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_WARN_SCRIPT_LOCATION": "1"}
        if (packages := kernel.packages) is not None:
            self.place = os.path.join(packages, self.inside)
            os.makedirs(self.place, 0o700, exist_ok=True)
            self._made = True
            reached = [name.removesuffix(" private") for name in (await index.network()).allow]
            policy = srt.for_installing(kernel.wanted.policy, self.place, index.directories, reached)
            # srt's own list says that local addresses are reached without its proxy. Nothing is, where pip runs.
            env |= {"NO_PROXY": "", "no_proxy": "", "PIP_NO_CACHE_DIR": "1"}
            return await run_apart(kernel, policy, facts, [*command, "--prefix", self.place, *options], env)
        self._make()
        argv = [*command, "--prefix", self.inside, *options]
        if self._isolate == "none":
            kernel.control.begin(argv, self._cwd, env=env)
            return await kernel.control.finish()
        listener, port = await kernel.control.listen()
        network = SandboxNetwork(await index.network(), kernel.note)
        network.adopt(listener)
        try:
            kernel.control.begin(argv, self._cwd, env=env | network.environment(port))
            return await kernel.control.finish()
        finally:
            await network.close()

    async def remove(self) -> None:
        """Remove all of them."""
        if not self._made:
            return
        held, self._held = self._held, None
        try:
            os.rmdir(self.place)  # mostly nothing was installed
        except OSError:
            await asyncio.to_thread(remove_place, self.place)
        finally:
            if held is not None:
                os.close(held)


_ELSEWHERE = ("--target", "--prefix", "--root", "--user", "--index-url", "--pypi-url", "--extra-index-url", "--find-links")
_ELSEWHERE_SHORT = "tif"
_WITH_VALUE = "rceC"
"""Short options that take what follows them for their value."""


def _check(arguments: tuple[str, ...]) -> None:
    if not any(not argument.startswith("-") for argument in arguments):
        raise InvalidInputError("say what to install: install('package>=1')")
    for argument in arguments:
        name = argument.partition("=")[0]
        # pip takes the beginning of a long option for the option.
        long = name.startswith("--") and any(option.startswith(name) for option in _ELSEWHERE)
        if long or _goes_elsewhere(argument):
            raise InvalidInputError(
                f"{argument} is not for a session to choose: packages come from the host's index, for this session"
            )


def _goes_elsewhere(argument: str) -> bool:
    """Whether an argument has a short option that is refused; pip takes several behind one dash: ``-qt/tmp``."""
    if not argument.startswith("-") or argument.startswith("--"):
        return False
    for letter in argument[1:]:
        if letter in _ELSEWHERE_SHORT:
            return True
        if letter in _WITH_VALUE:
            return False
    return False
