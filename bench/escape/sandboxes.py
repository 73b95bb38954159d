"""The sandboxes that are compared, each with the settings that its documentation gives for code that nobody trusts."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bench.escape.suite import Attack
from bench.escape.world import World

PYTHON = "/usr/bin/python3"
_CELLBLOCK = Path(__file__).parent / "in_cellblock.py"
_SANDLOCK = """
import sys
from sandlock import Sandbox

*readable, workspace = sys.argv[2:]
sandbox = Sandbox(fs_readable=readable, fs_writable=[workspace], cwd=workspace)
result = sandbox.run(["/usr/bin/python3", "-c", sys.argv[1]], timeout=30)
sys.stdout.buffer.write(result.stdout)
sys.stderr.buffer.write(result.stderr)
"""
_IMAGE = "python:3-slim"


class AbsentError(Exception):
    """This machine has no such sandbox."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox without isolation, and what the others have in common.

    To add one, subclass it, and add an instance to `SANDBOXES`.

    Attributes:
        name: Its name in the tables.
        settings: How it is used, in a few words.
    """

    name: str
    settings: str

    def version(self) -> str:
        """Return its version.

        Raises:
            AbsentError: This machine does not have it; the message says what is missing.
        """
        return sys.version.split()[0]

    def command(self, program: str, attack: Attack, world: World) -> list[str]:
        """Return the command that runs a program in it, which prints what the program prints."""
        return [PYTHON, "-c", program]

    def environment(self, world: World) -> dict[str, str]:
        """Return what it adds to the environment of the command."""
        return {}


class Nothing(Sandbox):
    """No isolation, and a proxy that stops nobody. An attack that fails here proves nothing about a sandbox."""

    def environment(self, world: World) -> dict[str, str]:
        return dict.fromkeys(("HTTP_PROXY", "ALL_PROXY"), f"http://127.0.0.1:{world.proxy.port}")


@dataclass(frozen=True, slots=True)
class Cellblock(Sandbox):
    """Cells of a session of cellblock."""

    isolate: str

    def version(self) -> str:
        return version("cellblock")

    def command(self, program: str, attack: Attack, world: World) -> list[str]:
        return [sys.executable, str(_CELLBLOCK), self.isolate, str(attack.sessions), str(world.workspace), program]


class Bubblewrap(Sandbox):
    """The options of bwrap that sandbox-runtime passes, without its proxies, its filter and its list of protected names."""

    def version(self) -> str:
        return _version("bwrap")

    def command(self, program: str, attack: Attack, world: World) -> list[str]:
        workspace, home = str(world.workspace), str(world.home)
        options = [
            "--new-session",
            "--die-with-parent",
            "--unshare-net",
            "--ro-bind",
            "/",
            "/",
            "--bind",
            workspace,
            workspace,
        ]
        options += [
            "--tmpfs",
            home,
            "--dev",
            "/dev",
            "--unshare-pid",
            "--unshare-user",
            "--cap-drop",
            "ALL",
            "--proc",
            "/proc",
        ]
        return ["bwrap", *options, "--chdir", workspace, "--", PYTHON, "-c", program]


@dataclass(frozen=True, slots=True)
class SandboxRuntime(Sandbox):
    """The command srt."""

    hides_home: bool

    def version(self) -> str:
        return _version("srt")

    def command(self, program: str, attack: Attack, world: World) -> list[str]:
        hidden = [".env", *([str(world.home)] if self.hides_home else [])]
        domains = ["*.allowed.test"] if self.hides_home else []
        files = {"denyRead": hidden, "allowRead": [], "allowWrite": [".", "~/Library/Jupyter", "~/.ipython"], "denyWrite": []}
        network = {"allowedDomains": domains, "deniedDomains": [], "allowLocalBinding": not self.hides_home}
        settings = world.top / "srt.json"
        settings.write_text(json.dumps({"filesystem": files, "network": network, "allowPty": not self.hides_home}))
        (world.top / "attack.py").write_text(program)  # its own command line is shorter than a program
        return ["srt", "--settings", str(settings), PYTHON, str(world.top / "attack.py")]


class Sandlock(Sandbox):
    """The quick start of sandlock's Python package, with the workspace instead of /tmp."""

    def version(self) -> str:
        if importlib.util.find_spec("sandlock") is None:
            raise AbsentError("pip install sandlock")
        return version("sandlock")

    def command(self, program: str, attack: Attack, world: World) -> list[str]:
        readable = [path for path in ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev") if os.path.exists(path)]
        return [sys.executable, "-c", _SANDLOCK, program, *readable, str(world.workspace)]


@dataclass(frozen=True, slots=True)
class Container(Sandbox):
    """A container without a network."""

    client: str

    def version(self) -> str:
        found = _version(self.client)
        asked = subprocess.run([self.client, "image", "inspect", _IMAGE], capture_output=True, text=True, check=False)
        if asked.returncode:
            raise AbsentError(f"no daemon answers, or there is no image {_IMAGE}")
        return found

    def command(self, program: str, attack: Attack, world: World) -> list[str]:
        workspace, user = str(world.workspace), f"{os.getuid()}:{os.getgid()}"
        options = ["--rm", "--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", user]
        return [
            self.client,
            "run",
            *options,
            "-v",
            f"{workspace}:{workspace}",
            "-w",
            workspace,
            _IMAGE,
            "python3",
            "-c",
            program,
        ]


def _version(command: str) -> str:
    """Return the version that a command prints."""
    if shutil.which(command) is None:
        raise AbsentError(f"no {command} in PATH")
    printed = subprocess.run([command, "--version"], capture_output=True, text=True, check=False).stdout
    return next((word.strip(",") for word in printed.split() if word[:1].isdigit()), "unknown")


NOTHING = Nothing("no sandbox", "the attacks must succeed here")
SANDBOXES: tuple[Sandbox, ...] = (
    NOTHING,
    Cellblock("cellblock, native", "the default policy, and `hosts=['*.allowed.test']`", "native"),
    Cellblock("cellblock, Landlock", "the default policy", "landlock"),
    SandboxRuntime("sandbox-runtime", "home and `.env` in `denyRead`, `*.allowed.test` allowed", True),
    SandboxRuntime("sandbox-runtime, as ipybox", "the `sandbox.json` that ipybox 0.9.2 brings", False),
    Bubblewrap("bubblewrap", "the options that sandbox-runtime passes, home hidden"),
    Sandlock("sandlock", "the quick start of its Python package"),
    Container("Docker", f"`{_IMAGE}`, no network, no capabilities, `no-new-privileges`", "docker"),
    Container("Podman", f"`{_IMAGE}`, no network, no capabilities, `no-new-privileges`", "podman"),
)
