"""Unpacks one wheel, or compiles an unpacked one. Runs alone in a sandbox: started by path, standard library only.

The unpacker refuses every archive that two programs could read differently. Its request and its answer are files in the
directory of its argument.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import itertools
import json
import os
import py_compile
import re
import shutil
import stat
import struct
import sys
import zipfile
from collections.abc import Iterable, Iterator
from configparser import Error as ConfigError
from configparser import RawConfigParser
from typing import IO

MAX_FILES = 200_000
_MAX_PATH, _MAX_NAME, _MAX_DEPTH = 1024, 255, 64
_PIECE = 1024 * 1024
_MAX_INFO = 64 * 1024 * 1024  # bytes of a file of metadata
_LOCAL = struct.Struct("<4s5H3L2H")
_END = b"PK\x05\x06"
_DESCRIPTOR = 24  # maximum bytes between the data of two files
_TIME = 315_532_800  # 1980, the beginning of zip's calendar
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SCRIPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_TARGET = re.compile(r"([A-Za-z_][\w.]*)\s*:\s*([A-Za-z_][\w.]*)\s*(?:\[.*\])?")
_METADATA = re.compile(r"site-packages/[^/]+\.dist-info/METADATA")
_SHEBANG = b"#!/usr/bin/env python3"
_PLACES = {"purelib": "site-packages", "platlib": "site-packages", "scripts": "bin", "headers": "include", "data": ""}


class WheelError(ValueError):
    """A wheel that is not unpacked. The message tells why."""


def unpack(path: str, name: str, tree: str, limit: int) -> list[str]:
    """Unpack a wheel. Return its manifest: for each file a line with hash, size and path.

    Args:
        path: The archive.
        name: Its file name.
        tree: An existing, empty directory.
        limit: Maximum bytes of all files.

    Raises:
        WheelError: The archive is not a plain, unambiguous wheel, or is too large.
    """
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            members = _checked(archive, file)
            return _Wheel(archive, members, name, tree, limit).unpack()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, UnicodeError, struct.error) as error:
        raise WheelError(f"it is not a valid archive: {error}") from error


def _checked(archive: zipfile.ZipFile, file: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by path, if all programs read it alike."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 22))
    if archive.comment or not file.read().startswith(_END):
        raise WheelError("there is data after the end of the archive")
    members: dict[str, zipfile.ZipInfo] = {}
    parents: set[str] = set()
    expected, slack = 0, 0
    if len(archive.infolist()) > MAX_FILES:
        raise WheelError(f"it has more than {MAX_FILES:,} files")
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        path = _checked_path(info)
        start = _checked_header(info, file)
        if not expected <= info.header_offset <= expected + slack:
            raise WheelError(f"there is hidden or shared data before {info.filename!r}")
        expected, slack = start + info.compress_size, _DESCRIPTOR if info.flag_bits & 8 else 0
        if info.is_dir():
            continue
        if path in members:
            raise WheelError(f"{path!r} occurs twice")
        members[path] = info
        parents.update(_parents(path))
    if not expected <= archive.start_dir <= expected + slack:
        raise WheelError("there is hidden data before the directory of the archive")
    if both := parents & members.keys():
        raise WheelError(f"{min(both)!r} is both a file and a directory")
    return members


def _checked_path(info: zipfile.ZipInfo) -> str:
    path = info.orig_filename
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.is_dir():
        path = path.removesuffix("/")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > info.is_dir():
        raise WheelError(f"{path!r} is neither a file nor a directory")
    parts = path.split("/")
    if (
        not path.isprintable()
        or "\\" in path
        or path != info.filename.removesuffix("/")
        or any(part in ("", ".", "..") or len(part.encode()) > _MAX_NAME for part in parts)
        or len(path.encode()) > _MAX_PATH
        or len(parts) > _MAX_DEPTH
        or ":" in parts[0]
    ):
        raise WheelError(f"the path {path[:200]!r} is not allowed")
    if info.flag_bits & 0x2041 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise WheelError(f"{path!r} is encrypted, or compressed with an unusual method")
    return path


def _checked_header(info: zipfile.ZipInfo, file: IO[bytes]) -> int:
    """Check that the file's own header says the same as the archive's directory. Return where the data begins."""
    file.seek(info.header_offset)
    signature, _, flags, method, _, _, crc, packed, size, length, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    name = file.read(length)
    same = signature == b"PK\x03\x04" and method == info.compress_type and flags == info.flag_bits
    same = same and name == info.orig_filename.encode("utf-8" if flags & 0x800 else "cp437")
    if not flags & 8 and 0xFFFFFFFF not in (packed, size):
        same = same and (crc, packed, size) == (info.CRC, info.compress_size, info.file_size)
    if not same:
        raise WheelError(f"the two headers of {info.filename!r} differ")
    return int(info.header_offset + _LOCAL.size + length + extra)


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


class _Wheel:
    """An open wheel, and where its files go."""

    def __init__(
        self, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str, tree: str, limit: int
    ) -> None:
        self._archive = archive
        self._members = members
        self._tree = tree
        self._left = limit
        self._limit = limit
        self._files: dict[str, tuple[int, str]] = {}
        parts = name.removesuffix(".whl").split("-")
        if not name.endswith(".whl") or len(parts) not in (5, 6) or not _NAME.fullmatch(parts[0]):
            raise WheelError(f"{name!r} is not the name of a wheel")
        self.name, self.version = parts[0], parts[1]
        found = {path.split("/")[0] for path in members if path.split("/")[0].endswith(".dist-info")}
        wanted = (_normal(self.name), self.version.replace("_", "-"))
        infos = [top for top in found if _identity(top) == wanted]
        if len(found) != 1 or not infos:
            raise WheelError(f"it must have one directory {self.name}-{self.version}.dist-info, and has {sorted(found)}")
        self._info = infos[0]

    def unpack(self) -> list[str]:
        """Unpack all files. Return the manifest."""
        headers = self._headers("METADATA")
        if _normal(headers.get("name", "")) != _normal(self.name):
            raise WheelError(f"its METADATA names another package, {headers.get('name', '')!r}")
        if not self._headers("WHEEL").get("wheel-version", "").startswith("1."):
            raise WheelError("its WHEEL has an unknown version of the format")
        known = dict(self._record())
        data = self._info.removesuffix(".dist-info") + ".data"
        for path, info in self._members.items():
            top, _, rest = path.partition("/")
            key, _, inner = rest.partition("/")
            if top != data:
                self._write(f"site-packages/{path}", path, info, known.get(path))
            elif key in _PLACES and inner:
                target = f"{_PLACES[key]}/{inner}".lstrip("/")
                if key == "headers":
                    target = f"include/{self.name}/{inner}"
                self._write(target, path, info, known.get(path), script=key == "scripts")
            else:
                raise WheelError(f"{path!r} has no place")
        for script, text in self._scripts():
            self._put(f"bin/{script}", iter([text.encode()]), executable=True)
        return [f"{digest} {size} {path}" for path, (size, digest) in sorted(self._files.items())]

    def _read(self, name: str) -> str:
        info = self._members.get(f"{self._info}/{name}")
        if info is None:
            return ""
        if info.file_size > _MAX_INFO:
            raise WheelError(f"{info.filename!r} is too large")
        return self._archive.read(info).decode("utf-8", "replace")

    def _headers(self, name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in self._read(name).splitlines():
            if not line.strip():
                break
            key, _, value = line.partition(":")
            found.setdefault(key.strip().lower(), value.strip())
        return found

    def _record(self) -> Iterator[tuple[str, str]]:
        """Yield the hashes in RECORD. Files without one are accepted: the hash of the whole archive covers them."""
        for row in csv.reader(self._read("RECORD").splitlines()):
            if len(row) >= 2 and row[1]:
                algorithm, _, value = row[1].partition("=")
                if algorithm == "sha256":
                    yield row[0], value

    def _scripts(self) -> Iterator[tuple[str, str]]:
        parser = RawConfigParser(delimiters=("=",), strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # documented: names keep their case
        try:
            parser.read_string(self._read("entry_points.txt"))
        except ConfigError as error:
            raise WheelError(f"its entry_points.txt is invalid: {error.message}") from error
        for section in ("console_scripts", "gui_scripts"):
            for name, value in parser.items(section) if parser.has_section(section) else ():
                if (match := _TARGET.fullmatch(value)) is None or not _SCRIPT.fullmatch(name):
                    raise WheelError(f"its script {name[:100]!r} is invalid")
                module, function = match.groups()
                first = function.partition(".")[0]
                lines = (_SHEBANG.decode(), "import sys", f"from {module} import {first}", f"sys.exit({function}())", "")
                yield name, "\n".join(lines)

    def _write(self, target: str, path: str, info: zipfile.ZipInfo, known: str | None, *, script: bool = False) -> None:
        with self._archive.open(info) as member:
            # Scripts are small, and their first line is changed.
            whole = member.read(_MAX_INFO) if script else b""
            changed = script and whole.startswith(b"#!python")
            pieces = iter([_SHEBANG + whole[whole.find(b"\n") :]]) if changed else itertools.chain([whole], _pieces(member))
            self._put(target, pieces, executable=script or bool(info.external_attr >> 16 & 0o100))
        digest = hashlib.sha256(whole).digest() if changed else bytes.fromhex(self._files[target][1])
        if known is not None and known.rstrip("=") != base64.urlsafe_b64encode(digest).decode().rstrip("="):
            raise WheelError(f"{path!r} has another hash in RECORD")

    def _put(self, target: str, pieces: Iterable[bytes], *, executable: bool) -> None:
        if target in self._files:
            raise WheelError(f"{target!r} occurs twice")
        digest, size, full = hashlib.sha256(), 0, os.path.join(self._tree, target)
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "xb") as file:
                for piece in pieces:
                    self._left -= len(piece)
                    if self._left < 0:
                        raise WheelError(f"it has more than {self._limit >> 20:,} MiB of packages")
                    digest.update(piece)
                    size += len(piece)
                    file.write(piece)
        except (FileExistsError, NotADirectoryError) as error:
            raise WheelError(f"{target!r} is both a file and a directory, or occurs twice") from error
        os.chmod(full, 0o555 if executable else 0o444)
        # Bytecode is valid for a time and a size: equal files have equal times, and others have others.
        when = _TIME + int(digest.hexdigest()[:7], 16)
        os.utime(full, (when, when))
        self._files[target] = size, digest.hexdigest()


def _pieces(member: IO[bytes]) -> Iterator[bytes]:
    while piece := member.read(_PIECE):
        yield piece


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _identity(directory: str) -> tuple[str, str]:
    name, _, version = directory.removesuffix(".dist-info").partition("-")
    return _normal(name), version.replace("_", "-")


def compile_tree(tree: str, paths: list[str], out: str) -> None:
    """Write the bytecode of an unpacked wheel's modules. Modules that do not compile are left out.

    Args:
        tree: The unpacked wheel.
        paths: Its modules, relative.
        out: The directory for the bytecode.
    """
    for path in paths:
        target = os.path.join(out, importlib.util.cache_from_source(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            py_compile.compile(os.path.join(tree, path), target, path, doraise=True, quiet=1)
        except (py_compile.PyCompileError, ValueError, RecursionError):
            continue
        os.chmod(target, 0o444)


def _main(directory: str) -> None:
    with open(os.path.join(directory, "request.json"), encoding="utf-8") as file:
        request = json.load(file)
    answer: dict[str, object] = {}
    try:
        if "modules" in request:
            compile_tree(request["tree"], request["modules"], os.path.join(directory, "tree"))
        else:
            lines = unpack(request["wheel"], request["name"], os.path.join(directory, "tree"), request["limit"])
            with open(os.path.join(directory, "manifest"), "x", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
            (metadata,) = (path for _, _, path in (line.split(" ", 2) for line in lines) if _METADATA.fullmatch(path))
            shutil.copyfile(os.path.join(directory, "tree", metadata), os.path.join(directory, "METADATA"))
    except WheelError as error:
        answer["error"] = str(error)
    except OSError as error:
        answer |= {"error": error.strerror, "errno": error.errno}
    with open(os.path.join(directory, "answer.json"), "x", encoding="utf-8") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    _main(sys.argv[1])
