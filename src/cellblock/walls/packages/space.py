"""How much the packages of a session take. Packages decide what lies there, so looking has limits, too."""

from __future__ import annotations

import os
import stat

MOST_FILES = 200_000
"""Files and directories that the packages of one session may have."""


def excess(place: str, most_bytes: int, most_files: int = MOST_FILES) -> str | None:
    """Return what is too much in a directory, or None. It blocks, but for no longer than the limit on files takes.

    Args:
        place: The directory.
        most_bytes: How much may lie on disk there.
        most_files: How many files and directories there may be.
    """
    used = found = 0
    pending = [place]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    found += 1
                    if found > most_files:
                        return f"more than {most_files:,} files"
                    status = entry.stat(follow_symlinks=False)
                    used += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(entry.path)
        except FileNotFoundError:
            continue  # pip moves things about
        except OSError as error:  # too deep to be named, or closed to us: it cannot be counted
            return f"directories that cannot be measured ({error.strerror})"
        if used > most_bytes:
            return f"more than {most_bytes >> 20:,} MiB"
    return None
