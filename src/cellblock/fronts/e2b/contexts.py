"""E2B's contexts: named sessions of the daemon that share one workspace, like the contexts of one sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import os
import posixpath
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cellblock.errors import ConflictError, InvalidInputError, NotFoundError, UnsupportedError
from cellblock.fronts.gateway.kernelspecs import installed, places_of
from cellblock.model.sessions import OWN_KERNEL
from cellblock.operations.executions import Submit
from cellblock.operations.programs import Ports
from cellblock.operations.sessions import Create, Destroy, List, Restart, Status

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest

    from cellblock.operations.base import AnswerT, Request
    from cellblock.service.daemon.link import SessionLink

PYTHON = "python"
LISTED = (PYTHON, "javascript")
"""Languages whose default contexts are listed before their first use, as E2B does."""

_ALIASES = {"js": "javascript", "ts": "typescript"}
_KERNELS = {"javascript": ("javascript", "typescript"), "typescript": ("typescript", "javascript")}
"""Language → the languages of kernels that run it, as kernelspecs name them; by default its own name."""

_LANGUAGE = re.compile(r"[a-z][a-z0-9_+#]{0,30}")
MAX_PATH = 4096
_CWD = "e2b-cwd"
"""The label of a session that says where its code began to work."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The workspace shared by all contexts of a sandbox.

    Attributes:
        path: The path on this machine, without symbolic links.
        home: The path as code and E2B's clients know it: ``/home/user`` if the sandbox can provide that name.
        options: The options of the sessions.
    """

    path: str
    home: str
    options: Mapping[str, Any]

    def inner(self, path: str) -> str:
        """Convert a client's path for operations: relative to the workspace, or absolute if it is outside.

        Args:
            path: The client's path: absolute, or relative to the home directory.

        Raises:
            InvalidInputError: The path is invalid.
        """
        if not path or "\0" in path or len(path) > MAX_PATH:
            raise InvalidInputError(f"path must be a path of at most {MAX_PATH} characters, without NUL")
        if path == "~" or path.startswith("~/"):
            path = f"{self.home}{path[1:]}"
        found = "/" + posixpath.normpath(posixpath.join(self.home, path)).lstrip("/")  # POSIX keeps two slashes
        for top in (self.home, self.path):
            if found == top or found.startswith(f"{top}/"):
                return posixpath.relpath(found, top)
        return found

    def outer(self, path: str) -> str:
        """Convert an operation's path for E2B's clients."""
        return posixpath.normpath(posixpath.join(self.home, path))


@dataclass(frozen=True, slots=True)
class Context:
    """A context.

    Attributes:
        id: The id, which is the name of its session.
        language: The language.
        cwd: The initial directory of its code.
    """

    id: str
    language: str
    cwd: str

    def to_dict(self) -> dict[str, str]:
        """Return the context in E2B's form."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}


class Contexts:
    """The contexts of one sandbox. Only the daemon stores them: they outlive this process.

    Attributes:
        workspace: The shared workspace.
        arming: Held while code for the very next cell is submitted.
    """

    def __init__(self, link: SessionLink, workspace: Workspace) -> None:
        """Set up.

        Args:
            link: The link to the sessions.
            workspace: The shared workspace, which identifies the sandbox.
        """
        self._link = link
        self.workspace = workspace
        self.arming = asyncio.Lock()
        self._prefix = f"e2b-{hashlib.sha256(os.fsencode(workspace.path)).hexdigest()[:8]}-"

    def find(self, identity: str | None, language: str | None) -> Context:
        """Return the context with an id, or the default one of a language. Its session may not exist.

        Args:
            identity: The id, or None.
            language: The language; None stands for Python.

        Raises:
            NotFoundError: No context has the id.
            InvalidInputError: The language is invalid.
        """
        if not identity:
            return self._default(_normal(language))
        if (found := language_in(identity, self._prefix)) is None:
            raise _missing(identity)
        return Context(identity, found, self.workspace.home)

    async def ask(
        self, request: Callable[[str], Request[AnswerT]], body: bytes = b"", context: Context | None = None
    ) -> AnswerT:
        """Run an operation in the session of a context. The session of a default context is created if needed.

        Args:
            request: Returns the request for the name of a session.
            body: The body of the request.
            context: The context; by default Python's default context, which provides the sandbox's files and programs.

        Raises:
            NotFoundError: The context has no session, and is not a default context.
            UnsupportedError: There is no kernel for its language.
            CellblockError: Any other error of the daemon.
        """
        context = context or self._default(PYTHON)
        try:
            return await self._link.call(request(context.id), body)
        except NotFoundError:
            if context.id != self._default(context.language).id:
                raise _missing(context.id) from None
            await self._create(context)
            return await self._link.call(request(context.id), body)

    async def ready(self) -> str:
        """Return the name of the session of Python's default context, and create it if needed."""
        return str((await self.ask(Status))["name"])

    async def listening(self, port: int) -> str:
        """Return the id of the session in which a server listens at a port.

        Raises:
            NotFoundError: No context has such a server.
            ConflictError: Several contexts have one.
        """
        found: dict[str, str] = {}
        others: set[int] = set()
        for record in await self._link.call(List()):
            if language_in(record["name"], self._prefix) is None:
                continue
            with suppress(NotFoundError):  # it has just ended
                ports = await self._link.call(Ports(record["kernel_id"]))
                others.update(ports)
                if port in ports:
                    found[record["name"]] = record["kernel_id"]
        if len(found) > 1:
            raise ConflictError(
                f"servers of {len(found)} contexts listen at port {port}: stop all but one of {', '.join(found)}"
            )
        if not found:
            listed = f"its servers listen at {', '.join(map(str, sorted(others)))}" if others else "start a server first"
            raise NotFoundError(f"nothing listens at port {port} of the sandbox: {listed}")
        return next(iter(found.values()))

    async def all(self) -> list[Context]:
        """Return all contexts: the default ones, then the others by age."""
        found = {name: self._default(name) for name in LISTED}
        for record in await self._link.call(List()):
            name: str = record["name"]
            if (language := language_in(name, self._prefix)) is not None:
                cwd = record["tags"].get(_CWD, self.workspace.home)
                found[name.removeprefix(self._prefix)] = Context(name, language, cwd)
        return [*found.values()]

    async def make(self, cwd: str | None, language: str | None) -> Context:
        """Create a context.

        Args:
            cwd: The initial directory of its code. If the code may not enter it, the home directory is used, and reported.
            language: The language; None stands for Python.

        Raises:
            InvalidInputError: An argument is invalid.
            UnsupportedError: There is no kernel for this language.
        """
        language = _normal(language)
        if language == "bash":
            raise UnsupportedError("bash has one context, without variables from one script to the next")
        if cwd is not None and (not cwd or "\0" in cwd or len(cwd) > MAX_PATH):
            raise InvalidInputError("cwd must be the path of a directory")
        context = Context(f"{self._prefix}{language}-{secrets.token_hex(8)}", language, cwd or self.workspace.home)
        await self._create(context)
        if context.cwd == self.workspace.home or await self._has_entered(context):
            return context
        await self.remove(context.id)
        return await self.make(None, language)

    async def restart(self, identity: str) -> None:
        """Restart a context with a fresh kernel.

        Raises:
            NotFoundError: The context does not exist.
        """
        await self.ask(Restart, context=self.find(identity, None))

    async def remove(self, identity: str) -> None:
        """End a context.

        Raises:
            NotFoundError: There is no such context.
        """
        if not await self._link.call(Destroy(self.find(identity, None).id)):
            raise _missing(identity)

    def _default(self, language: str) -> Context:
        # Bash scripts run in the Python kernel, by %%bash: no kernel is needed for them.
        return Context(f"{self._prefix}{PYTHON if language == 'bash' else language}", language, self.workspace.home)

    async def _create(self, context: Context) -> None:
        kernel = await asyncio.to_thread(
            kernel_for, context.language, str(self.workspace.options.get("python", sys.executable))
        )
        options = {**self.workspace.options, "kernel_type": kernel}
        if kernel == OWN_KERNEL:
            options["startup_code"] = startup_code(self.workspace.home, context.cwd)
        await self._link.call(Create(context.id, options, {_CWD: context.cwd}))

    async def _has_entered(self, context: Context) -> bool:
        """Return whether a fresh kernel works in its initial directory."""
        asked = Submit(context.id, silent=True, wait=True, timeout=10_000)
        result = await self._link.call(asked, b"print(get_ipython().e2b.directory)")
        return bool(result["output"] == f"{context.cwd}\n")


def language_in(name: str, prefix: str) -> str | None:
    """Return the language of a context from its name; None for this user's other sessions, which are not contexts.

    Args:
        name: The name.
        prefix: The prefix of the names of the sandbox's contexts.
    """
    found = re.fullmatch(re.escape(prefix) + rf"({_LANGUAGE.pattern})(-[0-9a-f]+)?", name)
    return None if found is None else found[1]


def startup_code(home: str, cwd: str) -> str:
    """Return the start-up code of a context.

    Args:
        home: The home directory.
        cwd: The initial directory of the code.
    """
    # It defines no names, so that programs can list their own definitions.
    return f"__import__('cellblock.worker.e2b').worker.e2b.prepare({home!r}, {cwd!r})"


def _normal(language: str | None) -> str:
    """Return the normal form of a language's name.

    Raises:
        InvalidInputError: It is not the name of a language.
    """
    name = (language or PYTHON).strip().lower()
    name = _ALIASES.get(name, name)
    if not _LANGUAGE.fullmatch(name):
        raise InvalidInputError(f"language must be the name of one, not {name[:40]!r}")
    return name


def kernel_for(language: str, python: str = sys.executable) -> str:
    """Return the kernelspec that runs a language.

    Args:
        language: The language.
        python: The interpreter of the session, or its environment's directory.

    Raises:
        UnsupportedError: No kernelspec does.
    """
    if language in (PYTHON, "bash"):
        return OWN_KERNEL
    prefix = python if os.path.isdir(python) else os.path.dirname(os.path.dirname(shutil.which(python) or python))
    specs = installed(places_of(prefix))
    for wanted in _KERNELS.get(language, (language,)):
        for name, spec in specs.items():
            if str(spec["language"]).lower() == wanted and name != OWN_KERNEL:
                return name
    raise UnsupportedError(
        f"there is no Jupyter kernel for {language!r} here: install one, and jupyter_client, where the sessions have Python"
    )


def _missing(identity: str) -> NotFoundError:
    return NotFoundError(f"Context {identity[:100]} not found")


def contexts_of(request: HttpRequest) -> Contexts:
    contexts: Contexts = request.app.state.contexts
    return contexts
