"""The user's repository, for tests of clones."""

from __future__ import annotations

from pathlib import Path

import pytest

from git_repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """The user's repository, with one commit."""
    made = Repository(tmp_path / "project")
    made.commit(**{"a.txt": "one\n"})
    return made
