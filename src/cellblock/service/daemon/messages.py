"""Operations under their former address, for the programs that measure this version and older ones."""

from __future__ import annotations

from cellblock.operations.base import PROTOCOL
from cellblock.operations.executions import Executions, Follow
from cellblock.operations.sessions import Create, End, Hello, History, List

__all__ = ["PROTOCOL", "Create", "End", "Executions", "Follow", "Hello", "History", "List"]
