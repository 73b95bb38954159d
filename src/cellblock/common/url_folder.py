"""Folders at URLs, accessed with fsspec: in buckets, on other machines, in memory. Each file is written atomically.

fsspec, and a package for most schemes, are optional, and are imported when a URL is first used. ``file:`` needs neither.
Credentials come from the scheme's package or fsspec's settings; a URL cannot contain any.

Atomic writes depend on the scheme:

- ``file``: to a temporary name, then renamed.
- Object stores (`_OBJECTS`): they show an object once it is complete.
- Others: to a temporary name, then moved. That is as atomic as the scheme's own move.

Answers of a store are untrusted: sizes are checked before and during a read.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Protocol

from cellblock.common.extras import missing_extra
from cellblock.common.urls import check, local_path
from cellblock.common.whole_file import WholeFile
from cellblock.errors import InvalidInputError, StoreError, UnsupportedError

MAX_FILE = 16 * 1024**3
"""Bytes of the largest file that is read."""

_PIECE = 4 * 1024 * 1024
_MAX_NAMES = 10_000
_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
_EXCLUSIVE = frozenset({"s3", "s3a", "gs", "gcs", "memory"})
"""Schemes with exclusive creation: if several create the same name at once, only one succeeds."""

_REFUSED = re.compile(r"credential|permission|forbidden|denied|unauthori[sz]ed|signature|token|accesskey", re.IGNORECASE)


class Folder(Protocol):
    """A folder at a URL, which need not exist. Methods block, and any thread can call them.

    All of them raise `StoreError` if the store cannot be used, and `UnsupportedError` if a package for it is missing.
    """

    url: str
    exclusive: bool
    """Whether `create` is safe against others who create the same name at once."""

    def prepare(self) -> None:
        """Import the required packages, without a request."""

    def names(self) -> list[str]:
        """Return the names of its files."""

    def read(self, name: str, most: int) -> bytes | None:
        """Return a small file; None if it does not exist."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file if the name is free. Return whether it was."""

    def upload(self, name: str, path: str, stop: threading.Event | None = None) -> None:
        """Copy a local file to the folder. If stopped meanwhile, change nothing."""

    def download(self, name: str, file: IO[bytes], stop: threading.Event | None = None) -> None:
        """Copy a file of at most `MAX_FILE` bytes to an open local one."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def clear(self) -> None:
        """Remove all of its files."""

    def written(self, name: str) -> float:
        """Return when a file was written, by the store's clock, in seconds since the epoch."""


def folder_at(url: str) -> Folder:
    """Return the folder at a URL, without imports and requests.

    Raises:
        InvalidInputError: The URL is not supported.
    """
    path = local_path(url)
    return _LocalFolder(url, path) if path is not None else _StoreFolder(url)


def age(folder: Folder, name: str) -> float:
    """Return the age of a file in seconds by its store's clock alone, because clocks of machines differ.

    Raises:
        StoreError, UnsupportedError: As for `Folder`.
    """
    probe = f"now-{secrets.token_hex(8)}"
    folder.write(probe, b"now")
    try:
        return max(folder.written(probe) - folder.written(name), 0.0)
    finally:
        folder.remove(probe)


class Stopped(Exception):  # noqa: N818  # not an error: the caller asked for it
    """A transfer was stopped."""


def _check_stop(stop: threading.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise Stopped


class _LocalFolder:
    """A folder of this machine, or of a file system that several machines share."""

    exclusive = True

    def __init__(self, url: str, path: str) -> None:
        self.url = url
        self._path = path

    def prepare(self) -> None:
        """Do nothing: no package is needed."""

    def names(self) -> list[str]:
        with self._telling("cannot be listed"):
            try:
                return sorted(os.listdir(self._path))
            except FileNotFoundError:
                return []

    def read(self, name: str, most: int) -> bytes | None:
        with self._telling(f"has {name}, which cannot be read"):
            try:
                with open(self._of(name), "rb") as file:
                    return _bounded(file.read(most + 1), most)
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._telling(f"cannot have {name}"), WholeFile(self._made(name)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def create(self, name: str, data: bytes) -> bool:
        with self._telling(f"cannot have {name}"):
            fresh = f".{name}-{secrets.token_hex(8)}"
            self.write(fresh, data)
            try:
                os.link(self._of(fresh), self._of(name))  # unlike a rename, it fails if the name is taken
            except FileExistsError:
                return False
            finally:
                os.unlink(self._of(fresh))
            return True

    def upload(self, name: str, path: str, stop: threading.Event | None = None) -> None:
        with self._telling(f"cannot have {name}"), open(path, "rb") as source, WholeFile(self._made(name)) as file:
            while piece := source.read(_PIECE):
                _check_stop(stop)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    def download(self, name: str, file: IO[bytes], stop: threading.Event | None = None) -> None:
        with self._telling(f"has {name}, which cannot be read"), open(self._of(name), "rb") as source:
            _copy(source, os.fstat(source.fileno()).st_size, file, stop)

    def remove(self, name: str) -> None:
        with self._telling(f"cannot remove {name}"), suppress(FileNotFoundError):
            os.unlink(self._of(name))

    def clear(self) -> None:
        for name in self.names():
            self.remove(name)
        with suppress(OSError):  # it has new files by now, or was removed
            os.rmdir(self._path)

    def written(self, name: str) -> float:
        with self._telling(f"has {name}, which cannot be read"):
            return os.stat(self._of(name)).st_mtime

    def _of(self, name: str) -> str:
        return os.path.join(self._path, name)

    def _made(self, name: str) -> str:
        os.makedirs(self._path, 0o700, exist_ok=True)
        return self._of(name)

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise StoreError(f"{self.url} {what}: {error}") from error.__cause__
        except OSError as error:
            raise StoreError(f"{self.url} {what}: {error.strerror or error}") from error


class _StoreFolder:
    """A folder that fsspec accesses."""

    def __init__(self, url: str) -> None:
        self.url = url if url.endswith("://") else url.rstrip("/")
        self._scheme = check(url)[0]
        self.exclusive = self._scheme in _EXCLUSIVE
        self._opened: tuple[Any, str] | None = None

    def prepare(self) -> None:
        self._open()

    def names(self) -> list[str]:
        with self._telling("cannot be listed"):
            store, root = self._open()
            store.invalidate_cache(root)
            try:
                found = [str(path).rstrip("/").rpartition("/")[2] for path in store.ls(root, detail=False)]
            except FileNotFoundError:
                return []
            if len(found) > _MAX_NAMES:
                raise StoreError(f"it has more than {_MAX_NAMES:,} files")
            return sorted(found)

    def read(self, name: str, most: int) -> bytes | None:
        with self._telling(f"has {name}, which cannot be read"):
            store, path = self._at(name)
            try:
                return _bounded(store.cat_file(path, start=0, end=most + 1), most)
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._telling(f"cannot have {name}"):
            self._place(name, lambda store, path: store.pipe_file(path, data))

    def create(self, name: str, data: bytes) -> bool:
        with self._telling(f"cannot have {name}"):
            store, path = self._at(name)
            if self.exclusive:
                try:
                    store.pipe_file(path, data, mode="create")
                except OSError as error:
                    if not isinstance(error, FileExistsError) and not store.exists(path):
                        raise
                    return False
                return True
            if store.exists(path):
                return False
            self._place(name, lambda store, path: store.pipe_file(path, data))
            return bool(store.cat_file(path) == data)

    def upload(self, name: str, path: str, stop: threading.Event | None = None) -> None:
        with self._telling(f"cannot have {name}"):
            from fsspec.callbacks import Callback

            # Packages that send parts call it after each of them, and stop if it raises.
            progress = Callback(hooks={"stop": lambda *_args, **_more: _check_stop(stop)})
            _check_stop(stop)
            self._place(name, lambda store, target: store.put_file(path, target, callback=progress), stop)

    def download(self, name: str, file: IO[bytes], stop: threading.Event | None = None) -> None:
        with self._telling(f"has {name}, which cannot be read"):
            store, path = self._at(name)
            size = store.info(path).get("size")
            if type(size) is not int:
                raise StoreError("the store does not report its size")
            with store.open(path, "rb", cache_type="readahead") as source:
                _copy(source, size, file, stop)

    def remove(self, name: str) -> None:
        with self._telling(f"cannot remove {name}"), suppress(FileNotFoundError):
            store, path = self._at(name)
            store.rm_file(path)

    def clear(self) -> None:
        for name in self.names():
            self.remove(name)

    def written(self, name: str) -> float:
        with self._telling(f"has {name}, which cannot be read"):
            store, path = self._at(name)
            try:
                return float(store.modified(path).timestamp())
            except NotImplementedError:
                raise UnsupportedError(
                    f"the package for {self._scheme}: URLs does not report modification times: use another store"
                ) from None

    def _place(self, name: str, write: Callable[[Any, str], object], stop: threading.Event | None = None) -> None:
        """Write a file atomically."""
        store, path = self._at(name)
        if self._scheme in _OBJECTS:
            write(store, path)
            return
        store.makedirs(self._open()[1], exist_ok=True)
        fresh = self._at(f".{name}-{secrets.token_hex(8)}")[1]
        try:
            write(store, fresh)
            _check_stop(stop)
            store.mv(fresh, path)
        except BaseException:  # includes interrupts: nothing of it stays
            with suppress(Exception):
                store.rm_file(fresh)
            raise

    def _at(self, name: str) -> tuple[Any, str]:
        store, root = self._open()
        path = f"{root}/{name}" if root else name
        store.invalidate_cache(root)
        return store, path

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            try:
                from fsspec.core import url_to_fs
            except ImportError:
                raise missing_extra("s3" if self._scheme == "s3" else "urls", f"{self._scheme}: URLs") from None
            try:
                store, root = url_to_fs(self.url)
            except ImportError as error:  # it names the package
                if self._scheme == "s3":
                    raise missing_extra("s3", "s3: URLs") from None
                raise UnsupportedError(f"{self._scheme}: URLs need another package: {_short(error)}") from None
            except ValueError as error:
                raise InvalidInputError(f"{self.url!r} cannot be used: {_short(error)}") from None
            self._opened = store, str(root).rstrip("/")
        return self._opened

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Convert any exception of a package to our errors."""
        try:
            yield
        except StoreError as error:
            raise StoreError(f"{self.url} {what}: {error}") from error.__cause__
        except (InvalidInputError, UnsupportedError, Stopped):
            raise
        except NotImplementedError as error:
            raise UnsupportedError(f"{self.url} {what}: the package for {self._scheme}: URLs does not support this") from error
        except Exception as error:
            said = f"{type(error).__name__}: {_short(error)}"
            if isinstance(error, FileNotFoundError):
                said = f"there is no such file or bucket ({_short(error)})"
            elif isinstance(error, PermissionError) or _REFUSED.search(said):
                said = f"the store denied access: {said}. Set credentials for the process that runs the sessions"
            raise StoreError(f"{self.url} {what}: {said}") from error


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _bounded(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise StoreError(f"it is over the limit of {most:,} bytes")
    return data


def _copy(source: IO[bytes], size: int, file: IO[bytes], stop: threading.Event | None) -> None:
    """Copy exactly the announced number of bytes, within the limit and the space on the disk."""
    if size > MAX_FILE:
        raise StoreError(f"it has {size:,} bytes, over the limit of {MAX_FILE:,}")
    room = shutil.disk_usage(os.path.dirname(file.name) if isinstance(file.name, str) else tempfile.gettempdir()).free
    if size > room:
        raise StoreError(f"it has {size:,} bytes, and there is room for {room:,} here")
    left = size
    while left:
        _check_stop(stop)
        piece = source.read(min(_PIECE, left))
        if not piece:
            raise StoreError(f"it ended after {size - left:,} of {size:,} bytes")
        file.write(piece)
        left -= len(piece)
    if source.read(1):
        raise StoreError(f"it has more than its stated size of {size:,} bytes")
