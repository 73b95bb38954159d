"""Operations on paths as text. Paths must be absolute, normalised, and without symbolic links."""

from __future__ import annotations

from collections.abc import Iterable


def is_inside(path: str, directory: str) -> bool:
    """Return whether a path is a directory or lies in it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def topmost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that are not inside another one, the shortest first."""
    found: list[str] = []
    for path in sorted(paths, key=len):
        if not any(is_inside(path, other) for other in found):
            found.append(path)
    return tuple(found)
