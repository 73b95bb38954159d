"""The files of a session, reached from outside it: every step beneath the workspace, whatever the code inside plants."""

from cellblock.host.files.files import Files
from cellblock.host.files.info import FileInfo, FileLimits, Skipped, Transfer

__all__ = ["FileInfo", "FileLimits", "Files", "Skipped", "Transfer"]
