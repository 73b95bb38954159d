"""Environments with names, for clients."""

from __future__ import annotations

from dataclasses import dataclass

from cellblock.model.plain import Plain


@dataclass(frozen=True, slots=True)
class EnvironmentRecord(Plain):
    """An environment with a name.

    Attributes:
        name: Its name.
        key: Its key in the store, which differs if a package differs.
        made: When it was made, in seconds since 1970.
        base: ``empty`` if it hides the interpreter's packages, else ``interpreter``.
        trusted: Whether the user trusts these packages, so that `preload` may import them.
        asked: The requirements that it was made from.
        packages: All packages with their versions.
        lock: Its lock (``pylock.toml``, PEP 751); empty in lists.
        previous: The lock that the name had before, if this request replaced it; else empty.
    """

    name: str
    key: str
    made: float
    base: str
    trusted: bool
    asked: tuple[str, ...]
    packages: tuple[str, ...]
    lock: str = ""
    previous: str = ""
