"""Runs one step of an installation in a sandbox of its own, with one directory to write."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cellblock.errors import InvalidInputError, KernelDiedError, SandboxError
from cellblock.host.environment import find_interpreter
from cellblock.host.environments.linking import opened
from cellblock.host.environments.store import Store, read_small
from cellblock.host.launch.launchers import LaunchKey
from cellblock.host.launch.srt import sandbox_apart
from cellblock.model.untrusted import has_too_many_values
from cellblock.walls.packages.index import PackageIndex
from cellblock.walls.packages.space import excess
from cellblock.walls.sandbox import srt
from cellblock.walls.sandbox.policy import Filesystem, Network
from cellblock.walls.sandbox.probe import Facts
from cellblock.wire.control import Setup, Stop
from cellblock.wire.sandbox import Bind

if TYPE_CHECKING:
    from cellblock.host.kernels.kernel import Kernel
    from cellblock.host.launch.control import Control
    from cellblock.host.launch.kernel_spec import KernelSpec, RunningKernel
    from cellblock.walls.packages.mirror import PackageMirror

Launch: TypeAlias = Callable[["KernelSpec"], Awaitable["Kernel"]]
"""Starts a kernel, which the caller closes."""

_WORKER = Path(__file__).parents[2] / "worker"
_PREFIX = "cellblock-packages-"  # which later hosts remove if they are abandoned
_LOOK = 0.5  # seconds between checks of the written size
_OWN = (sys.prefix, sys.base_prefix, os.path.dirname(sys.executable))
_PLAIN = ("PATH", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        program: The name of a module of `cellblock.worker` to run.
        request: Its request. The program finds the directory ``out`` in its argument.
        readable: More readable files and directories, with their names inside. In the request, ``path:`` and the path
            stands for the path inside.
        interpreter: Its interpreter; None for the session's.
        sees_session: Whether it sees the files and the variables of the session.
        limit: Maximum bytes that it may write.
        fetches: Whether it gets an index.
        age: Minimum age of files of the index in seconds; None for the index's.
        copies: Files to copy into its directory, by their names there.
        fill: Writes more into its directory, whose path it takes.
        mounts: More mounts, if it sees the session. Native sandbox only.
        what: Its name in errors.
        limit_of: The owner of the limit, in errors.
    """

    program: str
    request: Mapping[str, Any]
    readable: Mapping[str, str]
    limit: int
    interpreter: str | None = None
    sees_session: bool = False
    fetches: bool = False
    age: float | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    fill: Callable[[str], Awaitable[None]] | None = None
    mounts: tuple[Bind, ...] = ()
    what: str = "an installation"
    limit_of: str = "this session (resources.packages)"


@dataclass(frozen=True, slots=True)
class Done:
    """What a step has made.

    Attributes:
        out: Its directory, until the step's block ends.
        inside: The name of the directory inside.
        answer: Its answer, which is untrusted.
        mirror: The index that it used, if any.
        work: An empty directory of the host, which it cannot see.
    """

    out: str
    inside: str
    answer: dict[str, Any]
    mirror: PackageMirror | None
    work: str

    @property
    def error(self) -> str:
        """The error in its answer."""
        return str(self.answer.get("error"))[:4000]


class Sandboxes:
    """Starts the sandboxes of steps.

    Attributes:
        index: The package index.
    """

    def __init__(
        self, store: Store, index: PackageIndex, facts: Facts, launch: Launch, begin: Callable[[LaunchKey], object]
    ) -> None:
        """Store the arguments.

        Args:
            store: Provides directories.
            index: The package index.
            facts: Facts about this machine.
            launch: Starts kernels.
            begin: Starts a zygote in the background.
        """
        self._store = store
        self.index = index
        self._facts = facts
        self._launch = launch
        self._begin = begin

    @contextlib.asynccontextmanager
    async def run(self, step: Step, wanted: KernelSpec, kernel: RunningKernel | None = None) -> AsyncIterator[Done]:
        """Run a step. Its directory exists within the block.

        Args:
            step: The step.
            wanted: The specification of the session's kernels.
            kernel: The session's kernel. srt needs it.

        Raises:
            InvalidInputError: It wrote too much.
            SandboxError, LaunchError: The sandbox could not be created, was killed, or gave no answer.
        """
        from cellblock.walls.packages.mirror import PackageMirror  # loads an HTTP client, which few sessions need

        # srt cannot show a part of the state directory, which it denies as a whole.
        prefix = f"{tempfile.gettempdir()}/{_PREFIX}" if wanted.tier.wrapped else ""
        with self._store.building(prefix) as top:
            out = f"{top}/out"
            for name in ("tree", "wheels", "tmp"):
                os.makedirs(f"{out}/{name}")
            os.mkdir(work := f"{top}/work")
            for name, path in step.copies.items():
                await asyncio.to_thread(shutil.copyfile, path, f"{out}/{name}")
            if step.fill is not None:
                await step.fill(out)
            inside, places = self._places(step, wanted, out)
            for path, name in places.items():
                if name.startswith(f"{out}/"):
                    await asyncio.to_thread(shutil.copyfile, path, name)
            mirror: PackageMirror | None = None
            async with self._sandbox(step, wanted, kernel, top, places) as control, contextlib.AsyncExitStack() as stack:
                options: list[str] = []
                if step.fetches:
                    listener, port = await control.listen()
                    index = self.index if step.age is None else replace(self.index, age=step.age)
                    limit, on_archive = wanted.policy.resources.packages, functools.partial(self.warm_up, wanted)
                    serving = PackageMirror(listener, index, limit, self._store.archives, on_archive)
                    mirror = await stack.enter_async_context(serving)
                    options = mirror.options(port)
                    _write(f"{out}/netrc", mirror.credentials)
                paths = {f"path:{name}": path for name, path in places.items()}
                request = {"index": options, **step.request}
                _write(f"{out}/request.json", json.dumps({key: _inside(value, paths) for key, value in request.items()}))
                interpreter = _visible(step.interpreter or wanted.interpreter)
                command = [interpreter, "-I", str(_WORKER / f"{step.program}.py"), inside]
                cwd = wanted.setup.cwd if step.sees_session else "/"
                control.begin(command, cwd, changes=_changes(step, wanted, inside), keep="together", place=f"{inside}/log")
                await self._finish(control, out, step)
                yield Done(out, inside, _answer(out, step.what), mirror, work)

    def warm_up(self, wanted: KernelSpec) -> None:
        """Start the zygote of this program's interpreter, which unpacks, if the session has another one."""
        if not wanted.tier.wrapped and (interpreter := find_interpreter(None)) != wanted.interpreter:
            self._begin(LaunchKey(interpreter, (), wanted.tier))

    def _places(self, step: Step, wanted: KernelSpec, out: str) -> tuple[str, dict[str, str]]:
        """Return the name of the directory inside, and the names of readable files inside by their names in requests."""
        tier = wanted.tier
        places = {path: tier.shown(path, name) for path, name in step.readable.items()}
        if tier.wrapped:
            own = f"{self._store.directory}/"
            places = {path: f"{out}/{step.readable[path]}" if path.startswith(own) else path for path in places}
        return tier.shown(out, ".out"), places

    @contextlib.asynccontextmanager
    async def _sandbox(
        self, step: Step, wanted: KernelSpec, kernel: RunningKernel | None, top: str, places: Mapping[str, str]
    ) -> AsyncIterator[Control]:
        tier, out = wanted.tier, f"{top}/out"
        if tier.wrapped:
            assert kernel is not None
            policy = srt.for_installing(wanted.policy, out, (*self.index.directories, *places.values(), *_OWN), ())
            async with sandbox_apart(kernel, policy, self._facts) as control:
                yield control
            return
        files = wanted.policy.filesystem if step.sees_session else Filesystem(write=())
        mounts = [Bind(path, name, "ro") for path, name in places.items()]
        if step.fetches:
            mounts += _index_mounts(self.index, everything=files.everything)
        mounts += [*step.mounts, Bind(out, tier.shown(out, ".out"), "rw")]
        cwd = wanted.setup.cwd if step.sees_session else f"{top}/work"
        env = dict(wanted.setup.env)
        if not step.sees_session:
            env = {name: env[name] for name in _PLAIN if name in env}
        setup = Setup(env, cwd, None, packages="", mounts=tuple(mounts))
        # A zygote with packages of an environment starts only kernels of this environment.
        other = step.interpreter not in (None, wanted.interpreter) or wanted.environment != ""
        apart = await self._launch(
            replace(
                wanted,
                interpreter=step.interpreter or wanted.interpreter,
                preload=() if other else wanted.preload,
                environment="",
                policy=replace(wanted.policy, filesystem=files, network=Network()),
                setup=setup,
                on_command=None,
                forbid_programs=False,
                spill_to=None,
                kept=None,
            )
        )
        try:
            apart.memory.look_soon()
            yield apart.control
        except KernelDiedError as error:
            raise SandboxError(f"{step.what} was stopped, along with its sandbox: {error}") from error
        finally:
            await apart.close()

    async def _finish(self, control: Control, out: str, step: Step) -> None:
        """Wait for the end of a step. Stop it when it writes more than it may."""
        over: list[str] = []

        async def watch() -> None:
            while not over:
                await asyncio.sleep(_LOOK)
                over.extend(filter(None, [await asyncio.to_thread(excess, out, step.limit)]))
            await control.command(Stop())

        watching = asyncio.create_task(watch())
        try:
            await control.finish()
        finally:
            watching.cancel()
        if over:
            raise InvalidInputError(f"{step.what} wrote {over[0]}, over the limit of {step.limit_of}")


def _visible(interpreter: str) -> str:
    """Return an interpreter's path in a sandbox, which shows its directories without the links that lead there."""
    directory = os.path.realpath(os.path.dirname(interpreter))
    if os.path.exists(f"{os.path.dirname(directory)}/pyvenv.cfg"):  # the name of a link says which environment it is
        return os.path.join(directory, os.path.basename(interpreter))
    return os.path.realpath(interpreter)


def _changes(step: Step, wanted: KernelSpec, inside: str) -> dict[str, str | None]:
    """Return environment changes that make pip, uv and Python ignore the session's settings and files."""
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    steering = [name for name in wanted.setup.env if name.startswith(("PYTHON", "PIP_", "UV_"))]
    names = (*steering, *proxies, *(name.lower() for name in proxies), "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "TEMP", "TMP")
    changes: dict[str, str | None] = dict.fromkeys(names)
    own_tmp = wanted.tier.shown("", ".") != ""
    temporary = "/tmp" if own_tmp else f"{inside}/tmp"
    changes |= {"HOME": temporary, "TMPDIR": None if own_tmp else temporary, "PYTHONDONTWRITEBYTECODE": "1"}
    return {**changes, "PIP_CONFIG_FILE": os.devnull, "NETRC": f"{inside}/netrc"}


def _index_mounts(index: PackageIndex, *, everything: bool) -> list[Bind]:
    # If everything is readable, only /tmp needs mounts, and mount points cannot be created elsewhere.
    return [
        Bind(path, path, "ro", optional=True)
        for path in index.directories
        if (path.startswith("/tmp/") if everything else not path.startswith(("/usr/", "/etc/ssl/")))
    ]


def _write(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)  # a default ACL of the directory could allow more
        file.write(text)


def _answer(out: str, what: str) -> dict[str, Any]:
    """Return the answer of a step.

    Raises:
        SandboxError: The answer is missing or invalid.
    """
    with opened(out) as directory:
        try:
            data = read_small("answer.json", directory)
            answer = None if has_too_many_values(data) else json.loads(data)
        except (OSError, ValueError):
            answer = None
        if not isinstance(answer, dict):
            with contextlib.suppress(OSError, ValueError):
                data = read_small("log.out", directory)
                raise SandboxError(f"{what} ended without an answer: {data[-1000:].decode(errors='replace').strip()}")
            raise SandboxError(f"{what} ended without an answer")
    return answer


def _inside(value: Any, paths: Mapping[str, str]) -> Any:
    """Return a value of a request with the paths inside."""
    if isinstance(value, list):
        return [_inside(one, paths) for one in value]
    return paths.get(value, value) if isinstance(value, str) else value
