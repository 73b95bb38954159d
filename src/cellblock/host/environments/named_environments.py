"""Names of environments. A name points to a lock and to the environment that was made from it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from cellblock.common.environments import PackageSet, check_name
from cellblock.errors import ConflictError, InvalidInputError, NotFoundError, did_you_mean
from cellblock.host.environments.requirements import of_set
from cellblock.host.environments.store import Source, Store, Wheel
from cellblock.host.environments.trust import Trust
from cellblock.host.files.steps import in_thread

if TYPE_CHECKING:
    from cellblock.host.environments.build import Environments, Target


@dataclass(frozen=True, slots=True)
class NamedEnvironment:
    """An environment with a name.

    Attributes:
        name: Its name.
        key: Its key in the store.
        made: When it was made, in seconds since the epoch.
        asked: The packages that were asked for.
        lock: All packages with their versions and hashes.
        previous: The file with the lock that the name had before, if it was moved just now.
    """

    name: str
    key: str
    made: float
    asked: PackageSet
    lock: PackageSet
    previous: str = ""

    @classmethod
    def read(cls, name: str, record: dict[str, Any]) -> NamedEnvironment:
        """Parse the record of a name."""
        asked, lock = PackageSet.from_dict(record["asked"]), PackageSet.from_dict(record["lock"])
        return cls(name, record["environments"], record["made"], asked, lock)

    @property
    def trusted(self) -> bool:
        """Whether the user trusts its packages (`Trust`)."""
        return self.key in Trust()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "name": self.name,
            "key": self.key,
            "made": self.made,
            "base": self.lock.base,
            "trusted": self.trusted,
            "asked": list(self.asked.packages),
            "packages": list(self.lock.packages),
        }


class Names:
    """The names of the environments in a store."""

    def __init__(self, store: Store) -> None:
        """Store the argument."""
        self._store = store

    def all(self) -> list[NamedEnvironment]:
        """Return the environments with names, by name."""
        records = [(name, self._store.named(name)) for name in self._store.names()]
        return [NamedEnvironment.read(name, record) for name, record in records if record is not None]

    def get(self, name: str) -> NamedEnvironment:
        """Return an environment.

        Raises:
            NotFoundError: The name does not exist.
            InvalidInputError: The name is invalid.
        """
        if (record := self._store.named(check_name(name))) is None:
            known = self._store.names()
            raise NotFoundError(
                f"there is no environment {name!r}{did_you_mean(name, known)}: 'cellblock env list' shows them, and "
                f"'cellblock env create {name} PACKAGE' makes one"
            )
        return NamedEnvironment.read(name, record)

    async def create(
        self, name: str, asked: PackageSet | None, environments: Environments, target: Target, *, upgrade: bool
    ) -> NamedEnvironment:
        """Create an environment, or move its name to another one with `upgrade`.

        Raises:
            InvalidInputError: The packages cannot be installed, or the arguments are invalid.
            ConflictError: The name exists with other packages.
            SandboxError, LaunchError: A sandbox could not be created, or was killed.
        """
        record = self._store.named(check_name(name))
        existing = None if record is None else NamedEnvironment.read(name, record)
        if asked is None:
            if existing is None or not upgrade:
                raise InvalidInputError(f"name the packages of environment {name!r}, or a file of them")
            asked = existing.asked
        elif existing is not None and not upgrade:
            if existing.asked == asked:
                return existing
            raise ConflictError(
                f"environment {name!r} exists with other packages: pass upgrade (--upgrade) to replace them, or another name"
            )
        made = await environments.obtain(asked, target, now=upgrade)
        try:
            # The lock on the new environment prevents its removal until the name protects it.
            return await in_thread(self._point, name, asked, existing, made.key, environments, target)
        finally:
            os.close(made.lock)

    def _point(
        self,
        name: str,
        asked: PackageSet,
        existing: NamedEnvironment | None,
        key: str,
        environments: Environments,
        target: Target,
    ) -> NamedEnvironment:
        """Let a name point to an environment. Another process may hold the lock meanwhile."""
        with self._locked():
            lock = self._lock(name, key, asked)
            answer = environments.answer_name(of_set(lock), target)
            self._store.add_answer(answer, [Wheel(*one) for one in self._store.wheels_of(key)])
            previous = self._keep_lock(existing) if existing is not None and existing.key != key else ""
            now = time.time()
            data = {"environments": key, "answers": answer, "made": now}
            self._store.add_name(name, data | {"asked": asked.to_dict(), "lock": lock.to_dict()})
        return NamedEnvironment(name, key, now, asked, lock, previous)

    def _lock(self, name: str, key: str, asked: PackageSet) -> PackageSet:
        wheels = [Wheel(*one) for one in self._store.wheels_of(key)]
        packages = tuple(f"{wheel.name}=={wheel.version}" for wheel in wheels)
        hashes = {wheel.name: (self._source(wheel).digest,) for wheel in wheels}
        return PackageSet(packages, hashes, exact=True, base=asked.base, title=f"environment {name}")

    def _source(self, wheel: Wheel) -> Source:
        found = self._store.source(wheel.digest)
        return Source(f"{wheel.name}-{wheel.version}", "", wheel.digest) if found is None else found

    def remove(self, name: str) -> str:
        """Remove a name. Return the path of a file with its lock, from which it can be created again.

        Raises:
            NotFoundError: The name does not exist.
            InvalidInputError: The name is invalid.
        """
        with self._locked():
            path = self._keep_lock(self.get(name))
            self._store.remove_name(name)
        return path

    def _keep_lock(self, environment: NamedEnvironment) -> str:
        return self._store.keep_lock(f"{environment.name}-{environment.key[:8]}", self.lock_text(environment))

    def lock_text(self, environment: NamedEnvironment) -> str:
        """Return the lock of an environment as ``pylock.toml`` (PEP 751)."""
        lines = ['lock-version = "1.0"', 'created-by = "cellblock"']
        for one in self._store.wheels_of(environment.key):
            wheel = Wheel(*one)
            source = self._source(wheel)
            place = ("url", source.url)
            if source.url.startswith("file://"):
                place = ("path", unquote(source.url.removeprefix("file://")))
            fields = [("name", source.file), place]
            file = ", ".join(f"{key} = {_quoted(value)}" for key, value in fields)
            file = f"{{ {file}, hashes = {{ sha256 = {_quoted(source.digest)} }} }}"
            kind = f"wheels = [{file}]" if source.file.endswith(".whl") else f"sdist = {file}"
            lines += ["", "[[packages]]", f"name = {_quoted(wheel.name)}", f"version = {_quoted(wheel.version)}", kind]
        lines += ["", "[tool.cellblock]", f"base = {_quoted(environment.lock.base)}"]
        return "\n".join(lines) + "\n"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Prevent changes of names by other processes."""
        descriptor = self._store.lock("names")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def packages_of(name: str) -> PackageSet:
    """Return the packages of a named environment: its lock.

    Raises:
        NotFoundError: The name does not exist.
        InvalidInputError: The name is invalid.
    """
    return Names(Store()).get(name).lock


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
