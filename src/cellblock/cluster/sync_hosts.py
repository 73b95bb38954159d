"""`SyncRayHosts`: sessions on the nodes of a Ray cluster, for programs without an event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, Self, Unpack

from cellblock.cluster.cluster_options import ClusterOptions
from cellblock.cluster.hosts import RayHosts
from cellblock.cluster.routing import PATIENCE
from cellblock.cluster.session import ClusterSession
from cellblock.common import loop_thread
from cellblock.common.loop_thread import LoopThread, Synchronous, parts_of, synchronous, synchronous_iterator
from cellblock.model.checkpoints import ForkKeywords
from cellblock.model.files import FileInfo

_P = ParamSpec("_P")


class SyncClusterSession(Synchronous):
    """A session on one of the cluster's nodes: `ClusterSession` for programs without an event loop.

    Attributes:
        record: The session's record when it was created or found.
        name: The session's name.
        id: The session's id, which is never reused.
        workspace: The session's workspace on its node.
    """

    def __init__(self, original: ClusterSession, thread: LoopThread) -> None:
        super().__init__(original, thread)
        self.record = original.record
        self.name, self.id, self.workspace = original.name, original.id, original.workspace

    adopt = synchronous(ClusterSession.adopt)
    allowed = synchronous(ClusterSession.allowed)
    answer = synchronous(ClusterSession.answer)
    attach = synchronous_iterator(ClusterSession.attach)
    cancel = synchronous(ClusterSession.cancel)
    change_network = synchronous(ClusterSession.change_network)
    checkpoint = synchronous(ClusterSession.checkpoint)
    checkpoints = synchronous(ClusterSession.checkpoints)
    close = synchronous(ClusterSession.close)
    decide = synchronous(ClusterSession.decide)
    diff = synchronous(ClusterSession.diff)
    drop_checkpoint = synchronous(ClusterSession.drop_checkpoint)
    exec = synchronous(ClusterSession.exec)
    execute = synchronous(ClusterSession.execute)
    executions = synchronous(ClusterSession.executions)
    file_info = synchronous(ClusterSession.file_info)
    file_versions = synchronous(ClusterSession.file_versions)
    history = synchronous(ClusterSession.history)
    install = synchronous(ClusterSession.install)
    interrupt = synchronous(ClusterSession.interrupt)
    list_files = synchronous(ClusterSession.list_files)
    load = synchronous(ClusterSession.load)
    lookup = synchronous(ClusterSession.lookup)
    make_folder = synchronous(ClusterSession.make_folder)
    network = synchronous(ClusterSession.network)
    pending = synchronous(ClusterSession.pending)
    processes = synchronous(ClusterSession.processes)
    read_file = synchronous(ClusterSession.read_file)
    read_parts = synchronous_iterator(ClusterSession.read_parts)
    read_process = synchronous(ClusterSession.read_process)
    redo = synchronous(ClusterSession.redo)
    register_mcp_server = synchronous(ClusterSession.register_mcp_server)
    remove_file = synchronous(ClusterSession.remove_file)
    rename_file = synchronous(ClusterSession.rename_file)
    resize_process = synchronous(ClusterSession.resize_process)
    restart = synchronous(ClusterSession.restart)
    restore = synchronous(ClusterSession.restore)
    restore_trash = synchronous(ClusterSession.restore_trash)
    result = synchronous(ClusterSession.result)
    revoke = synchronous(ClusterSession.revoke)
    save = synchronous(ClusterSession.save)
    signal_process = synchronous(ClusterSession.signal_process)
    spawn = synchronous(ClusterSession.spawn)
    status = synchronous(ClusterSession.status)
    stop_process = synchronous(ClusterSession.stop_process)
    stream = synchronous_iterator(ClusterSession.stream)
    submit = synchronous(ClusterSession.submit)
    trash = synchronous(ClusterSession.trash)
    undo = synchronous(ClusterSession.undo)
    variables = synchronous(ClusterSession.variables)
    write_process = synchronous(ClusterSession.write_process)

    def fork(self, names: Sequence[str], **how: Unpack[ForkKeywords]) -> list[SyncClusterSession]:
        """Create sessions with these names from the current state, as `ClusterSession.fork` does."""
        made = self._thread.run(self._original.fork(names, **how))
        return [SyncClusterSession(session, self._thread) for session in made]

    def write_file(self, path: str, data: bytes | str | Iterable[bytes]) -> FileInfo:
        """Write a file, as `ClusterSession.write_file` does. Another thread iterates over pieces."""
        content = data if isinstance(data, bytes | str) else parts_of(data)
        written: FileInfo = self._thread.run(self._original.write_file(path, content))
        return written


def _session(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, ClusterSession]],
) -> Callable[Concatenate[SyncRayHosts, _P], SyncClusterSession]:
    """Return the synchronous version of a method that returns a session."""

    def call(self: SyncRayHosts, /, *args: _P.args, **options: _P.kwargs) -> SyncClusterSession:
        return SyncClusterSession(self._thread.run(method(self._original, *args, **options)), self._thread)

    return functools.update_wrapper(call, method)


class SyncRayHosts(Synchronous):
    """Sessions on the nodes of a Ray cluster: `RayHosts` for programs without an event loop. Threads may share it.

    with SyncRayHosts(address="auto") as hosts:
        with hosts.session("task-17") as session:
            print(session.execute("6 * 7").text)
    """

    def __init__(self, address: str = "auto", *, patience: float = PATIENCE, options: ClusterOptions | None = None) -> None:
        """Configure without connecting. For the arguments, see `RayHosts`."""
        super().__init__(RayHosts(address, patience=patience, options=options), loop_thread.shared())

    start = synchronous(RayHosts.start)
    close = synchronous(RayHosts.close)
    get_or_create = _session(RayHosts.get_or_create)
    find = _session(RayHosts.find)
    list_sessions = synchronous(RayHosts.list_sessions)
    status = synchronous(RayHosts.status)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def session(self, name: str = "", **options: Any) -> Iterator[SyncClusterSession]:
        """Create a session for a ``with`` block, which ends it. For the arguments, see `RayHosts.get_or_create`."""
        session = self.get_or_create(name, fresh=True, **options)
        try:
            yield session
        finally:
            with suppress(LookupError):  # the session no longer exists
                session.close()
