"""The store of archives, unpacked wheels and environments, shared by all of a user's hosts.

Everything has its hash as its name, is made elsewhere and renamed into its place. A lock says what is in use.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cellblock.common import config
from cellblock.errors import InvalidInputError
from cellblock.host.environments.linking import check_tree, link_tree, opened, unlink
from cellblock.launch.leftovers import find_places, make_place, remove_abandoned, remove_place
from cellblock.walls.packages.archives import Archives
from cellblock.walls.packages.space import MOST_FILES

MAX_AGE = 30 * 86400.0
"""Seconds after their last use until environments are removed."""

FRESH = 86400.0
"""Seconds until unpinned requirements are resolved again."""

VENV = "pyvenv.cfg"
"""Marks an environment that hides the interpreter's packages."""

_VENV_TEXT = "home = {}\ninclude-system-site-packages = false\n"
_FORMAT = 2
_MAX_SMALL = 16 * 2**20


class Wheel(NamedTuple):
    """A wheel in the store, by the hash of its archive."""

    name: str
    version: str
    digest: str


class Answer(NamedTuple):
    """The packages for some requirements, and whether the answer is recent."""

    wheels: tuple[Wheel, ...]
    fresh: bool


class Source(NamedTuple):
    """The archive of a wheel: the wheel itself, or what it was built from.

    Attributes:
        file: Its name.
        url: Where it was, without credentials.
        digest: Its hash.
    """

    file: str
    url: str
    digest: str


def key_of(*parts: object) -> str:
    """Return the hash of some data, as a name."""
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


class Store:
    """The store below the state directory, which no sandboxed session can write.

    Attributes:
        directory: Its path.
        archives: The downloaded archives.
    """

    def __init__(self, limit: int = config.ENVIRONMENT_LIMIT) -> None:
        """Name the directories. They are created on demand.

        Args:
            limit: Size in bytes above which environments that were not used for longest are removed.
        """
        self._limit = limit
        self._sizes: dict[str, int] = {}
        self.directory = str(config.state_directory() / "environments")
        self.archives = Archives(self._path("archives"))

    def _path(self, *parts: str) -> str:
        return os.path.join(self.directory, *parts)

    @contextlib.contextmanager
    def building(self, prefix: str = "") -> Iterator[str]:
        """Create a directory for one step, removed at the end or, if this process is killed, by a later one.

        Args:
            prefix: Prefix of its path; empty for a directory in the store.
        """
        os.makedirs(self._path("building"), 0o700, exist_ok=True)
        prefix = prefix or self._path("building") + "/"
        for place in find_places(prefix):
            remove_abandoned(place)
        path = f"{prefix}{secrets.token_hex(8)}"
        held = make_place(path)
        try:
            yield path
        finally:
            remove_place(path)
            os.close(held)

    def lock(self, name: str) -> int:
        """Open a file to lock, and return its descriptor, which the caller closes."""
        os.makedirs(self._path("locks"), 0o700, exist_ok=True)
        return os.open(self._path("locks", name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    # -- wheels --------------------------------------------------------------------------------------------------------

    def wheel(self, digest: str) -> str:
        """Return the path of an unpacked wheel, whether or not it exists."""
        return self._path("wheels", digest)

    def has_wheel(self, digest: str) -> bool:
        return os.path.isdir(self.wheel(digest))

    def add_wheel(self, digest: str, made: str, most_bytes: int) -> None:
        """Take over an unpacked wheel.

        Args:
            digest: The hash of its archive.
            made: The directory with ``tree`` and ``manifest``, which a sandbox has written.
            most_bytes: Maximum size of its files.

        Raises:
            ValueError: It is not what an unpacker writes.
        """
        with opened(made) as directory, opened("tree", directory) as tree:
            check_tree(tree, most_bytes, MOST_FILES)
            self.archives.add_metadata(digest, read_small("METADATA", directory))
        target, new = self.wheel(digest), f"{made}/wheel"
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        os.mkdir(new, 0o755)
        for name in ("tree", "manifest"):
            os.rename(f"{made}/{name}", f"{new}/{name}")
        try:
            os.rename(new, target)
        except OSError as error:  # otherwise another host was quicker
            if error.errno == errno.EXDEV:
                with self.building() as here:
                    shutil.copytree(new, f"{here}/wheel", symlinks=True)
                    os.rename(f"{here}/wheel", target)
        if not self.has_wheel(digest):
            raise OSError(f"{target} cannot be written")

    def manifest(self, digest: str) -> Iterator[tuple[str, int, str]]:
        """Yield the path, size and hash of each file of an unpacked wheel."""
        with opened(self.wheel(digest)) as directory:
            text = read_small("manifest", directory, 64 * 2**20).decode()
        for line in text.splitlines():
            known, size, path = line.split(" ", 2)
            yield path, int(size), known

    def size(self, digest: str) -> int:
        """Return the size of an unpacked wheel in bytes."""
        if digest not in self._sizes:  # a manifest can have thousands of lines
            self._sizes[digest] = sum(size for _, size, _ in self.manifest(digest))
        return self._sizes[digest]

    def modules(self, digest: str) -> list[str]:
        """Return the paths of a wheel's modules."""
        paths = [path for path, _, _ in self.manifest(digest) if path.startswith("site-packages/") and path.endswith(".py")]
        return [path for path in paths if path.rpartition("/")[2].removesuffix(".py").isidentifier()]

    def add_bytecode(self, digest: str, kind: str, made: str, most_bytes: int) -> None:
        """Take over the bytecode of a wheel.

        Args:
            digest: The wheel.
            kind: The interpreter that compiled it, as a name.
            made: The directory that a sandbox has written.
            most_bytes: Maximum size.

        Raises:
            ValueError: There are other files than bytecode of the wheel's modules.
        """
        expected = {path.removesuffix(".py") for path in self.modules(digest)}

        def accept(path: str) -> bool:
            parent, _, name = path.rpartition("/")
            above = parent.removesuffix("__pycache__")
            return above != parent and name.endswith(".pyc") and above + name.split(".")[0] in expected

        with opened(made) as directory:
            check_tree(directory, most_bytes, MOST_FILES, accept)
        with contextlib.suppress(OSError):  # another host was quicker
            os.rename(made, self.bytecode(digest, kind))

    def bytecode(self, digest: str, kind: str) -> str:
        """Return the path of a wheel's bytecode, whether or not it exists."""
        return os.path.join(self.wheel(digest), f"bytecode-{kind}")

    def link(self, digest: str, kind: str, target: str, *, copy: bool = False) -> None:
        """Link a wheel and its bytecode into a directory.

        Args:
            digest: The wheel.
            kind: The interpreter of the bytecode.
            target: The directory.
            copy: Copies the files instead.
        """
        os.utime(self.wheel(digest))
        with opened(target) as there:
            for source in (os.path.join(self.wheel(digest), "tree"), self.bytecode(digest, kind)):
                with contextlib.suppress(FileNotFoundError), opened(source) as tree:
                    link_tree(tree, there, copy=copy)

    def unlink(self, digest: str, target: str) -> None:
        """Remove a wheel's files, and their bytecode, from a directory."""
        wheel = self.wheel(digest)
        with contextlib.suppress(FileNotFoundError), opened(target) as there:
            for path, _, _ in self.manifest(digest):
                unlink(path, there)
            for name in _names(wheel):
                top = os.path.join(wheel, name)
                for parent, _, files in os.walk(top) if name.startswith("bytecode-") else ():
                    for file in files:
                        unlink(os.path.relpath(os.path.join(parent, file), top), there)

    # -- small files ---------------------------------------------------------------------------------------------------

    def answer(self, key: str) -> Answer | None:
        """Return a resolution, if it is known."""
        try:
            data = self._read("answers", key)
            wheels = tuple(Wheel(*one) for one in data["wheels"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Answer(wheels, 0 <= time.time() - data["made"] < FRESH)

    def add_answer(self, key: str, wheels: Iterable[Wheel]) -> None:
        self._write("answers", key, {"made": time.time(), "wheels": [list(one) for one in wheels]})

    def built(self, key: str) -> tuple[str, str] | None:
        """Return the file name and the hash of the wheel that was built from a source archive, if any."""
        try:
            name, digest = self._read("built", key)
        except (OSError, ValueError):
            return None
        return (name, digest) if self.archives.has(digest) else None

    def add_built(self, key: str, name: str, digest: str) -> None:
        self._write("built", key, [name, digest])

    def source(self, digest: str) -> Source | None:
        """Return the archive of a wheel, if it is known."""
        try:
            return Source(*self._read("sources", digest))
        except (OSError, ValueError, TypeError):
            return None

    def add_source(self, digest: str, source: Source) -> None:
        self._write("sources", digest, list(source))

    def _read(self, kind: str, key: str) -> Any:
        path = self._path(kind, key)
        os.utime(path)
        return json.loads(Path(path).read_bytes())

    def _write(self, kind: str, key: str, data: object) -> None:
        os.makedirs(self._path(kind), 0o700, exist_ok=True)
        new = self._path(kind, f".{secrets.token_hex(8)}")
        try:
            Path(new).write_text(json.dumps(data))
            os.replace(new, self._path(kind, key))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)

    # -- names ---------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of environments."""
        return sorted(_names(self._path("names")))

    def named(self, name: str) -> dict[str, Any] | None:
        """Return the record of a name, if it exists."""
        try:
            record: dict[str, Any] = self._read("names", name)
        except (FileNotFoundError, ValueError):
            return None
        return record

    def add_name(self, name: str, record: dict[str, Any]) -> None:
        self._write("names", name, record)

    def remove_name(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path("names", name))

    def kept(self, kind: str) -> set[str]:
        """Return the files of a kind that named environments need."""
        records = filter(None, map(self.named, self.names()))
        return {record[kind] for record in records if isinstance(record.get(kind), str)}

    def keep_lock(self, name: str, text: str) -> str:
        """Write the lock of an environment that loses its name. Return the path, which exists until `prune`."""
        os.makedirs(self._path("removed"), 0o700, exist_ok=True)
        path = self._path("removed", f"{name}.toml")
        Path(path).write_text(text, encoding="utf-8")
        return path

    def prune(self) -> list[str]:
        """Remove everything that no name and no session needs. Return the removed environments."""
        for name in _names(self._path("removed")):
            _remove_by(os.unlink, self._path("removed", name))
        return self.collect(0, 0.0)

    # -- environments --------------------------------------------------------------------------------------------------

    def environment(self, key: str) -> str:
        """Return the directory of an environment's packages, whether or not it exists."""
        return self._path("environments", key, "prefix")

    def has_environment(self, key: str) -> bool:
        return os.path.isdir(self.environment(key))

    def make_environment(self, key: str, kind: str, wheels: Iterable[Wheel], made: str, python: str | None = None) -> None:
        """Link wheels to an environment, and put it in its place.

        Args:
            key: Its name.
            kind: The interpreter of its bytecode.
            wheels: Its wheels.
            made: An empty directory to make it in.
            python: The interpreter whose packages it hides, also from other programs: it becomes a virtual environment.
        """
        os.mkdir(f"{made}/environment", 0o755)
        os.mkdir(f"{made}/environment/prefix", 0o755)
        os.mkdir(f"{made}/environment/users", 0o700)
        Path(made, "environment", "wheels").write_text(json.dumps([list(one) for one in wheels]))
        for wheel in wheels:
            self.link(wheel.digest, kind, f"{made}/environment/prefix")
        if python is not None:
            real = os.path.realpath(python)
            Path(made, "environment", "prefix", VENV).write_text(_VENV_TEXT.format(os.path.dirname(real)))
            os.makedirs(f"{made}/environment/prefix/bin", 0o755, exist_ok=True)
            for name in ("python", "python3"):
                with contextlib.suppress(FileExistsError):
                    os.symlink(real, f"{made}/environment/prefix/bin/{name}")
        os.makedirs(self._path("environments"), 0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.rename(f"{made}/environment", self._path("environments", key))

    def use(self, key: str, place: str | None = None) -> None:
        """Record a use of an environment.

        Args:
            key: The environment.
            place: A session's directory. The environment is in use while the directory is locked, by whichever process.
        """
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path("environments", key))
            if place is not None:
                with contextlib.suppress(FileExistsError):
                    os.symlink(place, self._path("environments", key, "users", os.path.basename(place)))

    def drop_use(self, key: str, place: str) -> None:
        """Forget a session's use of an environment."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path("environments", key, "users", os.path.basename(place)))

    def verify(self, keys: Iterable[str] | None = None) -> list[str]:
        """Return the paths of files that differ from the manifests of wheels, or are in none.

        Bytecode has no manifest and is not checked, so a zygote does not load it.

        Args:
            keys: The environments to check with their wheels; None for all environments and all wheels.
        """
        digests: Iterable[str] = _names(self._path("wheels"))
        if keys is not None:
            digests = {one[2] for key in keys for one in self.wheels_of(key)}
        hashes = _Hashes()
        wrong: list[str] = []
        for digest in digests:
            tree = os.path.join(self.wheel(digest), "tree")
            try:
                wrong += hashes.differing(tree, {path: known for path, _, known in self.manifest(digest)})
            except (OSError, ValueError):
                wrong.append(os.path.join(self.wheel(digest), "manifest"))
        for key in _names(self._path("environments")) if keys is None else keys:
            wrong += self._verify_environment(key, hashes)
        return sorted(wrong)

    def _verify_environment(self, key: str, hashes: _Hashes) -> list[str]:
        prefix, expected = self.environment(key), dict[str, str]()
        try:
            wheels = json.loads(Path(self._path("environments", key, "wheels")).read_bytes())
            for _, _, digest in wheels:
                for path, _, known in self.manifest(digest):
                    expected.setdefault(path, known)  # `link` keeps the first file of a path
        except (OSError, ValueError, TypeError):
            return [self._path("environments", key, "wheels")]
        own = {VENV, "bin/python", "bin/python3"}
        return [
            path for path in hashes.differing(prefix, expected) if os.path.relpath(path, prefix) not in own - expected.keys()
        ]

    # -- collection ----------------------------------------------------------------------------------------------------

    def collect(self, most_bytes: int | None = None, oldest: float = MAX_AGE) -> list[str]:
        """Remove what was not used for long, or for longest if there is too much. Return the removed environments.

        Nothing happens while another process makes something.

        Args:
            most_bytes: Maximum size of the store; None for the store's limit.
            oldest: Maximum age of the last use, in seconds.
        """
        store = self.lock("store")
        try:
            fcntl.flock(store, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._collect(self._limit if most_bytes is None else most_bytes, oldest)
        except BlockingIOError:
            return []
        finally:
            os.close(store)

    def _collect(self, most_bytes: int, oldest: float) -> list[str]:
        removed, limit = [], time.time() - oldest
        named = self.kept("environments")
        aged = sorted((_used(self._path("environments", key)), key) for key in _names(self._path("environments")))
        total = self._total()
        for used, key in aged:
            if key not in named and (used < limit or total > most_bytes) and self._remove(key):
                removed.append(key)
                self._drop_unused(limit, all_of_them=used >= limit)
                total = self._total()
        self._drop_unused(limit, all_of_them=total > most_bytes)
        return removed

    def _remove(self, key: str) -> bool:
        """Remove an environment, unless it is in use."""
        place = self._path("environments", key)
        lock = self.lock(key)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            if any(_is_held(os.path.join(place, "users", name)) for name in _names(os.path.join(place, "users"))):
                return False
            remove_place(place)
            os.unlink(self._path("locks", key))
            return True
        finally:
            os.close(lock)

    def _drop_unused(self, limit: float, *, all_of_them: bool) -> None:
        """Remove wheels and archives that no environment has, and answers, if they are old or `all_of_them`."""
        needed = self.kept("answers")
        for key in _names(self._path("environments")):
            needed.update(one[2] for one in self.wheels_of(key))
        for kind in ("wheels", "archives", "archives-metadata", "answers", "built", "sources"):
            remove = remove_place if kind == "wheels" else os.unlink
            for name in _names(self._path(kind)):
                path = self._path(kind, name)
                if (_used(path) < limit or (all_of_them and kind in ("wheels", "archives"))) and name not in needed:
                    _remove_by(remove, path)

    def wheels_of(self, key: str) -> list[list[str]]:
        """Return the wheels of an environment: name, version and hash of each."""
        try:
            wheels: list[list[str]] = json.loads(Path(self._path("environments", key, "wheels")).read_bytes())
        except (OSError, ValueError):
            return []
        return wheels

    def _total(self) -> int:
        """Return the size of archives and wheels, to which environments only link."""
        total = sum(os.stat(self._path("archives", name)).st_size for name in _names(self._path("archives")))
        return total + sum(self.size(digest) for digest in _names(self._path("wheels")))


class _Hashes:
    """The hashes of files in a store, whose hard links are read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}

    def differing(self, top: str, expected: Mapping[str, str]) -> list[str]:
        """Return the paths in a directory that are missing, have another hash, or are not expected, except bytecode."""
        wrong, missing = [], dict(expected)
        for parent, directories, files in os.walk(top):
            links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
            for name in (*files, *links):
                full = os.path.join(parent, name)
                known = missing.pop(os.path.relpath(full, top), None)
                bytecode = name.endswith(".pyc") and os.path.basename(parent) == "__pycache__"
                if known != self._hash(full) if known is not None else not bytecode:
                    wrong.append(full)
        return wrong + [os.path.join(top, path) for path in missing]

    def _hash(self, path: str) -> str | None:
        """Return the hash of a plain file; None for anything else."""
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return None
                identity = (status.st_dev, status.st_ino)
                if identity not in self._known:
                    self._known[identity] = hashlib.file_digest(file, "sha256").hexdigest()
                return self._known[identity]
        except OSError:
            return None


def read_small(name: str, directory: int, most: int = _MAX_SMALL) -> bytes:
    """Read a file that a sandbox has written.

    Raises:
        ValueError: It is too large.
        OSError: It is missing, or a link.
    """
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{name} has more than {most:,} bytes")
    return data


def no_room(error: OSError, directory: str) -> InvalidInputError:
    """Return the exception for a disk that does not take an environment."""
    return InvalidInputError(
        f"the packages cannot be stored in {directory}: {error.strerror}; make room there, or set CELLBLOCK_HOME to a "
        "directory on another disk"
    )


def _names(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    except FileNotFoundError:
        return []


def _used(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_by(remove: Callable[[str], object], path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove(path)


def _is_held(link: str) -> bool:
    """Return whether the session's directory behind a link is in use. A link to a session that has ended is removed."""
    try:
        place = os.open(os.readlink(link), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        os.unlink(link)
        return False
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(place)
    return False
