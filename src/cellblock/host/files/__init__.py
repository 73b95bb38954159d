"""Access to a session's files from outside the session, confined to the workspace despite links of the session's code.

Names are loaded on first use: writing a cell's images needs one step of this, and not the archives.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellblock.host.files.info import FileLimits, Skipped, Transfer
    from cellblock.host.files.workspace_files import Files
    from cellblock.model.files import FileInfo

__all__ = ["FileInfo", "FileLimits", "Files", "Skipped", "Transfer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cellblock.host.files import info, workspace_files

    return getattr(workspace_files if name == "Files" else info, name)
