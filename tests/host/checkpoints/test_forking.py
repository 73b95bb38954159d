"""Forks: every branch starts, or those that do not are told apart; in executors, too."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from cellblock import CodeExecutor, Host, InvalidInputError, Session, SnapshotError, StateError
from cellblock.host.checkpoints import branches as branching
from cellblock.model.checkpoints import ForkKeywords


async def test_wrong_numbers_are_refused(zygote_host: Host, workspace: Path) -> None:
    async with zygote_host.session(working_dir=workspace, images_dir=workspace.parent, recovery="none") as session:
        for wrong in (0, True, 1001, "2"):
            with pytest.raises(InvalidInputError, match="n must be"):
                await session.fork(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="one per branch"):
            await session.fork(2, seeds=[1])
        for seed in (2**63, True, 1.5, "1", None):
            with pytest.raises(InvalidInputError, match="a seed must be"):
                await session.fork(1, seeds=[seed])  # type: ignore[list-item]
        with pytest.raises(InvalidInputError, match="one of the two"):
            await session.fork(1, seeds=[1], same_random_state=True)


async def test_a_branch_that_cannot_be_made_fails_alone(
    zygote_host: Host, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, count = branching.BranchDirectory._write, 0

    def fail(self: branching.BranchDirectory, identity: tuple[int, int] | None) -> None:
        nonlocal count
        count += 1
        if count % 4 == 0:  # the second one, after it was made
            raise OSError(28, "No space left on device")
        make(self, identity)

    monkeypatch.setattr(branching.BranchDirectory, "_write", fail)
    async with zygote_host.session(working_dir=workspace, images_dir=workspace.parent, recovery="none") as session:
        first, second = await session.fork(2, return_exceptions=True)
        assert isinstance(first, Session)
        assert isinstance(second, SnapshotError)
        assert "No space left" in str(second)
        with pytest.raises(SnapshotError):
            await session.fork(2)
        await first.close()
    assert list(workspace.iterdir()) == []


async def test_executors_have_branches_with_files(zygote_host: Host, workspace: Path) -> None:
    async with CodeExecutor(host=zygote_host, sandbox=False, working_dir=workspace, images_dir=workspace.parent) as executor:
        await executor.execute("import random; x = 1; open('a', 'w').write('1')")
        first, second = await executor.fork(2, seeds=[1, 1])
        drawn = [(await one.execute("open('a', 'w').write('2'); random.random()")).text for one in (first, second)]
        assert drawn[0] == drawn[1]
        assert (workspace / "a").read_text() == "1"
        assert (await executor.adopt(first)).written == ("a",)
        assert (workspace / "a").read_text() == "2"
        await second.stop()


async def test_a_branch_that_was_adopted_says_by_which_session(session: Session) -> None:
    name = f"session {repr(session).split()[1]}"
    (branch,) = await session.fork()
    await session.adopt(branch)
    for use in (lambda: branch.execute("1"), lambda: branch.put("x", 1), lambda: session.adopt(branch)):
        with pytest.raises(
            StateError, match=f"session [0-9]+ was adopted by {name}, which continues from its state: use that"
        ):
            await use()


@pytest.mark.slow
async def test_an_executor_that_was_adopted_says_by_which_one_and_can_be_started_again(executor: CodeExecutor) -> None:
    (branch,) = await executor.fork()
    await executor.adopt(branch)
    assert repr(branch).endswith("stopped>")
    for use in (lambda: branch.execute("1"), lambda: executor.adopt(branch)):
        with pytest.raises(StateError, match=f"the executor was adopted by executor {executor.session_id}, which continues"):
            await use()
    async with branch:
        assert (await branch.execute("1")).text == "1"
    with pytest.raises(StateError, match="the executor is stopped"):
        await branch.execute("1")


def test_the_arguments_for_type_checkers_are_those_that_there_are() -> None:
    for method in (Session.fork, CodeExecutor.fork):
        names = [name for name in inspect.signature(method).parameters if name not in ("self", "n", "return_exceptions")]
        assert names == [*ForkKeywords.__annotations__]
