"""Checks the size of a session's packages, within its own limits."""

from __future__ import annotations

import os
import stat

MOST_FILES = 200_000
"""Maximum files and directories of one session's packages."""


def excess(place: str, most_bytes: int, most_files: int = MOST_FILES) -> str | None:
    """Return which limit a directory exceeds, if any. Blocks no longer than counting up to the file limit takes.

    Args:
        place: The directory.
        most_bytes: Maximum bytes on disk.
        most_files: Maximum number of files and directories.
    """
    used = found = 0
    linked: set[int] = set()
    pending = [place]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    found += 1
                    if found > most_files:
                        return f"more than {most_files:,} files"
                    status = entry.stat(follow_symlinks=False)
                    if status.st_nlink == 1 or status.st_ino not in linked:
                        used += status.st_blocks * 512
                    if status.st_nlink > 1:
                        linked.add(status.st_ino)  # several installations of a session have it
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(entry.path)
        except FileNotFoundError:
            continue  # pip moves files meanwhile
        except OSError as error:  # too deep to be named, or unreadable: it cannot be counted
            return f"directories that cannot be measured ({error.strerror})"
        if used > most_bytes:
            return f"more than {most_bytes >> 20:,} MiB"
    return None
