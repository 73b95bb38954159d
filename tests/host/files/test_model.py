"""Whatever is done in whatever order, a workspace behaves like a dictionary of paths."""

from __future__ import annotations

import errno
import itertools
import tempfile
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cellblock import FilesError
from cellblock.host.files import Files
from cellblock.host.files.beneath import Walk

Model = dict[str, bytes | None]
"""Files with their content; folders with None."""

names = st.sampled_from(["a", "b", "ü\n", "\udcff"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
steps = st.one_of(
    st.tuples(st.just("write"), paths, st.binary(max_size=20)),
    st.tuples(st.just("read"), paths),
    st.tuples(st.just("stat"), paths),
    st.tuples(st.just("mkdir"), paths),
    st.tuples(st.just("list"), paths),
    st.tuples(st.just("remove"), paths, st.booleans()),
)


def above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def blocked(model: Model, path: str) -> int | None:
    """What keeps a path from being reached at all."""
    for folder in above(path):
        if folder not in model:
            return errno.ENOENT
        if model[folder] is not None:
            return errno.ENOTDIR
    return None


def expect(model: Model, step: tuple[Any, ...]) -> object:
    """Do a step to the model; return the result, or the error's number."""
    verb, path = step[:2]
    if verb in ("write", "mkdir"):
        if blocked(model, path) == errno.ENOTDIR:
            return errno.ENOTDIR
        if verb == "write" and path in model and model[path] is None:
            return errno.EISDIR
        if verb == "mkdir" and model.get(path) is not None:
            return errno.ENOTDIR
        model.update(dict.fromkeys(above(path)))
        model[path] = step[2] if verb == "write" else None
        return None
    error = blocked(model, path) or (errno.ENOENT if path not in model else None)
    if error:
        return error
    within = [other for other in model if other.startswith(path + "/")]
    if verb == "read":
        return errno.EISDIR if model[path] is None else model[path]
    if verb == "stat":
        return "directory" if model[path] is None else "file"
    if verb == "list":
        return sorted(other for other in within if "/" not in other[len(path) + 1 :]) if model[path] is None else errno.ENOTDIR
    if within and not step[2]:
        return errno.ENOTEMPTY
    for gone in [*within, path]:
        del model[gone]
    return None


async def act(files: Files, step: tuple[Any, ...]) -> object:
    verb, path, *more = step
    try:
        if verb == "remove":
            await files.remove(path, recursive=more[0])
            return None
        result: Any = await getattr(files, verb)(path, *more)
    except FilesError as error:
        return error.errno
    if verb == "list":
        return [entry.path for entry in result]
    if verb == "stat":
        return result.kind
    return None if verb == "write" else result


@given(st.lists(steps, max_size=25))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_a_workspace_behaves_like_a_dictionary(walk: Walk, done: list[tuple[Any, ...]]) -> None:
    model: Model = {}
    with tempfile.TemporaryDirectory() as root:
        files = Files(root, walk=walk)
        for step in done:
            assert await act(files, step) == expect(model, step), step
        listed = await files.list(recursive=True)
        assert [entry.path for entry in listed] == sorted(model)
        assert all(entry.kind == ("directory" if model[entry.path] is None else "file") for entry in listed)
        assert [entry.path for entry, _ in itertools.groupby(listed)] == [entry.path for entry in listed]
