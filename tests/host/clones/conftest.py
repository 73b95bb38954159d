"""The user's repository, and a session in a clone of it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, Session
from git_repositories import Repository


@pytest.fixture(scope="package")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one commit, to be copied."""
    made = Repository(tmp_path_factory.mktemp("template") / "project")
    made.commit(**{"a.txt": "one\n"})
    return made.path


@pytest.fixture
def repository(template: Path, tmp_path: Path) -> Repository:
    """The user's repository, with one commit. The index of the copy is stale."""
    return Repository.at(shutil.copytree(template, tmp_path / "project", symlinks=True))


@pytest.fixture
async def cloned(native_host: Host, repository: Repository) -> AsyncIterator[Session]:
    """A session in a clone of the repository."""
    async with native_host.session(working_dir=repository.path, workspace="clone") as session:
        yield session
