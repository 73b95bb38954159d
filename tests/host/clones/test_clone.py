"""Sessions in a clone: they commit, and nothing of the user's repository and working copy changes unless asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cellblock import CodeExecutor, Filesystem, Host, InvalidInputError, Policy, Session, UnsupportedError
from cellblock.errors import AccessError, StateError
from cellblock.host.checkpoints.checkpoint import Beginning
from cellblock.host.clones import clone
from cellblock.host.clones.clone import _as_reference
from git_repositories import Repository, hostile, run
from processes import eventually


def state_of(repository: Repository) -> tuple[str, ...]:
    return (
        repository.git("status", "--porcelain", "--untracked-files=all"),
        repository.git("for-each-ref"),
        (repository.path / ".git/config").read_text(),
        repository.git("rev-parse", "HEAD"),
    )


async def test_commits_are_fetched_and_changes_applied(native_host: Host, repository: Repository) -> None:
    (repository.path / ".env").write_text("SECRET=1\n")
    before = state_of(repository)
    async with native_host.session(working_dir=repository.path, workspace="clone") as session:
        assert await run(session, "!pwd; ls -a; git symbolic-ref HEAD | cut -d/ -f3; git config user.name") == "\n".join(
            (str(repository.path), ".", "..", ".git", "a.txt", "cellblock", "Ada")
        )
        await run(session, "!echo two >> a.txt && git commit -qam two && echo x > new && mkdir .vscode && echo x > .vscode/t")
        assert "refs/cellblock/" in repository.git("for-each-ref")  # nobody prunes the first commit
        assert (await session.clone_diff()).files == (".vscode/t", "a.txt", "new")
        assert await run(session, "!git status --porcelain && git fsck") == "?? .vscode/\n?? new"
        with pytest.raises(AccessError, match=r"'\.vscode/t'"):
            await session.clone_apply()
        assert repository.git("status", "--porcelain") == "?? .env"
        fetched = await session.clone_fetch()
        assert (fetched.commits, repository.git("log", "-1", "--format=%s %an", fetched.ref)) == (1, "two Ada")
        await run(session, "!rm -r .vscode")
        assert (await session.clone_apply()).files == ("a.txt", "new")
        assert (repository.path / "a.txt").read_text() == "one\ntwo\n"
        repository.git("checkout", "--", ".")
        (repository.path / "new").unlink()
    repository.git("update-ref", "-d", fetched.ref)
    assert state_of(repository) == before


@pytest.mark.slow
async def test_a_commit_is_undone_and_what_was_fetched_stays(cloned: Session, repository: Repository) -> None:
    await run(cloned, "!echo two > a.txt")
    await run(cloned, "!git commit -qam two")
    fetched = await cloned.clone_fetch()
    await cloned.undo()
    assert await run(cloned, "!git log --format=%s && git status --porcelain") == "a commit\n M a.txt"
    assert repository.git("log", "-1", "--format=%s", fetched.ref) == "two"
    await cloned.undo(2)
    await cloned.redo()
    assert (await cloned.clone_fetch()).commits == 0
    assert repository.git("rev-parse", fetched.ref) == repository.git("rev-parse", "HEAD")


async def test_settings_hooks_and_filters_of_a_session_run_in_its_sandbox_only(
    cloned: Session, repository: Repository, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    await run(cloned, hostile(mark))
    await run(cloned, "!git commit -qam hostile || git commit -q --no-verify -am hostile")
    assert await run(cloned, "!ls /tmp/ran") == "/tmp/ran"
    assert "+changed" in (await cloned.clone_diff()).patch
    await cloned.clone_fetch()
    await cloned.clone_apply()
    repository.git("log", "-p", "--all")
    assert not mark.exists()
    assert (repository.path / "a.txt").read_text() == "changed\n"


async def test_the_repository_of_the_project_is_read_only(cloned: Session, repository: Repository) -> None:
    """Files and programs know its path, which is the clone's for them."""
    before, project = state_of(repository), str(repository.path)
    code = "!git push -q origin HEAD:main; git -C /tmp/.origin config a.b c; touch /tmp/.origin/x; echo done"
    assert "Read-only file system" in await run(cloned, code)
    assert (await cloned.exec("pwd")).stdout == f"{project}\n".encode()
    assert await cloned.files.read(f"{project}/a.txt") == b"one\n"
    await cloned.files.write(f"{project}/new", "x")
    assert await run(cloned, f"open('{project}/new').read()") == "'x'"
    assert not (repository.path / "new").exists()
    await cloned.files.upload(repository.path / "a.txt", "copy")  # on this machine, the path is the project's own
    with pytest.raises(InvalidInputError, match=f"not in the workspace '{project}'"):
        await cloned.files.read(f"{project}2/a.txt")
    assert state_of(repository) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "!echo /nowhere > .git/objects/info/alternates",
        "!rm -rf .git",
        "!mv .git real && ln -s real .git && rm -rf real/HEAD",
        "!rm -rf .git && echo 'gitdir: /tmp/.origin' > .git && rm a.txt && mkdir -p /tmp/x && git config a.b c; rm .git",
        "!echo garbage > .git/HEAD",
    ],
)
async def test_a_broken_clone_is_an_error(cloned: Session, repository: Repository, code: str) -> None:
    before = state_of(repository)
    await run(cloned, code)
    for work in (cloned.clone_diff, cloned.clone_fetch, cloned.clone_apply):
        with pytest.raises((StateError, InvalidInputError), match=r"the changes of the clone cannot be packed|no commits"):
            await work()
    assert state_of(repository) == before


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_references_of_a_session_are_not_taken_over(cloned: Session, repository: Repository) -> None:
    await run(cloned, "!git tag evil && git checkout -q -b main && git commit -q --allow-empty -m other")
    await run(cloned, "!git update-ref refs/remotes/cellblock/x HEAD && git update-ref refs/heads/-x HEAD")
    before = repository.git("for-each-ref").splitlines()
    fetched = await cloned.clone_fetch()
    assert [line for line in repository.git("for-each-ref").splitlines() if line not in before] == [
        f"{fetched.commit} commit\t{fetched.ref}"
    ]


@pytest.mark.slow
async def test_an_executor_works_in_a_clone(native_host: Host, repository: Repository) -> None:
    async with CodeExecutor(working_dir=repository.path, workspace="clone", host=native_host) as executor:
        await executor.execute("!echo two >> a.txt")
        assert (await executor.clone_fetch()).commits == 0
        assert (await executor.clone_diff()).files == (await executor.clone_apply()).files == ("a.txt",)
    assert (repository.path / "a.txt").read_text() == "one\ntwo\n"


@pytest.mark.slow
async def test_an_unrelated_history_is_fetched(cloned: Session, repository: Repository) -> None:
    await run(cloned, "!git checkout -q --orphan new && git commit -qm new")
    assert (await cloned.clone_fetch()).commits == 1


STATE = "!pwd; git status --porcelain -b; git log --format=%s; cat c; git fsck --no-dangling"


@pytest.mark.slow
async def test_each_branch_has_a_clone_of_its_own(cloned: Session, repository: Repository) -> None:
    await run(cloned, "!echo two >> a.txt && git commit -qam two && echo s > b && git add b && echo u > c && ln -s a.txt l")
    before = await run(cloned, STATE)
    first, second = await cloned.fork(2)
    inside = (await run(first, "!pwd")).removeprefix(f"{repository.path}/")
    assert inside.startswith(".cellblock-branch-")
    assert (await run(first, STATE)).replace(f"/{inside}", "") == before
    assert len(repository.git("for-each-ref", "refs/cellblock").splitlines()) == 3
    await run(first, "!git commit -qm three")
    assert (await first.clone_diff()).files == (await cloned.clone_diff()).files == ("a.txt", "b", "c", "l")
    found = [await one.clone_fetch() for one in (cloned, first, second)]
    assert [one.commits for one in found] == [1, 2, 1]
    assert len({one.ref for one in found}) == 3
    assert repository.git("log", "-1", "--format=%s", found[1].ref) == "three"
    await first.undo()
    assert await run(first, "!git log -1 --format=%s") == "two"
    await second.reset()  # its next kernel is a fresh one
    assert (await second.clone_apply()).files == ("a.txt", "b", "c", "l")
    assert (repository.path / "c").read_text() == "u\n"
    await first.close()
    await second.close()
    assert len(repository.git("for-each-ref", "refs/cellblock").splitlines()) == 1
    assert await run(cloned, STATE) == before


@pytest.mark.slow
async def test_an_adopted_branch_gives_the_session_its_clone(cloned: Session, repository: Repository) -> None:
    await run(cloned, "!echo two > a.txt && git commit -qam two")
    (branch,) = await cloned.fork()
    await run(branch, "!echo three > a.txt && git commit -qam three")
    await run(branch, "!echo new > c")
    await cloned.adopt(branch)
    assert await run(cloned, "!git log --format=%s; git status --porcelain; git fsck") == "three\ntwo\na commit\n?? c"
    assert (await cloned.clone_fetch()).commits == 2
    await cloned.undo(3)
    assert await run(cloned, "!git log --format=%s; git status --porcelain") == "two\na commit"
    assert len(repository.git("for-each-ref", "refs/cellblock").splitlines()) == 1


@pytest.mark.slow
async def test_a_clone_stays_until_its_last_branch_ends(native_host: Host, repository: Repository) -> None:
    async with native_host.session(working_dir=repository.path, workspace="clone") as session:
        await run(session, "!echo two > a.txt && git commit -qam two")
        (branch,) = await session.fork()
        (inner,) = await branch.fork()
        root = Path(session.workspace)
    await branch.close()
    assert root.exists()
    await inner.reset()
    assert await run(inner, "!git log -1 --format=%s") == "two"
    assert (await inner.clone_fetch()).commits == 1
    await inner.close()
    await eventually(lambda: not root.exists())
    assert repository.git("for-each-ref", "refs/cellblock") == ""


@pytest.mark.slow
async def test_a_broken_clone_of_a_branch_is_an_error(cloned: Session, tmp_path: Path) -> None:
    (branch,) = await cloned.fork()
    await run(branch, "!rm -rf .git")  # the directory above it has another clone
    with pytest.raises(StateError, match="the changes of the clone cannot be packed"):
        await branch.clone_fetch()
    other = Repository(tmp_path / "other")
    other.commit(secret="SECRET")
    name = Path(branch.workspace).name
    await run(cloned, f"!mv {name} moved && ln -s {other.path} {name}")
    for work in (branch.clone_diff, branch.clone_fetch, branch.clone_apply):
        with pytest.raises(StateError, match="the changes of the clone cannot be packed"):
            await work()
    await run(cloned, f"!rm {name} && mv moved {name}")
    await run(cloned, "!rm .git/info/exclude")
    assert (await cloned.clone_diff()).files == ()
    await branch.close()


@pytest.mark.slow
async def test_settings_of_a_session_run_in_the_sandbox_of_its_branches_only(
    cloned: Session, repository: Repository, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    await run(cloned, hostile(mark))
    (branch,) = await cloned.fork()
    await run(branch, "!git commit -q --no-verify -am hostile")
    assert "+changed" in (await branch.clone_diff()).patch
    await branch.clone_fetch()
    await branch.clone_apply()
    await cloned.adopt(branch)
    assert not mark.exists()
    assert (repository.path / "a.txt").read_text() == "changed\n"


@pytest.mark.slow
async def test_branches_of_a_clone_share_no_files(cloned: Session) -> None:
    with pytest.raises(StateError, match="and each branch needs its own copy: omit files='shared'"):
        await cloned.fork(files="shared")
    checkpoint = await cloned.checkpoint(files="copy")
    with pytest.raises(StateError, match="it would have no clone: fork a session in a clone"):
        cloned._branch(Beginning(checkpoint))


@pytest.mark.slow
async def test_git_that_does_not_end_is_stopped(cloned: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone, "_PATIENCE", 3.0)
    await run(cloned, "!git config core.fsmonitor 'sleep 600; false'")
    with pytest.raises(StateError, match="took more than 3 s"):
        await cloned.clone_diff()


async def test_other_sessions_have_no_clone(native_host: Host, repository: Repository, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path) as session:
        with pytest.raises(StateError, match=r"does not work in a clone: create it with workspace='clone' \(--clone\)"):
            await session.clone_fetch()
    for options, error, why in (
        ({"isolate": "none"}, UnsupportedError, "only with isolate='native', not 'none'"),
        ({"policy": Policy(Filesystem(write=()))}, InvalidInputError, "add '.' to allowWrite"),
        ({"workspace": "/x"}, InvalidInputError, "the option for a directory is working_dir"),
    ):
        with pytest.raises(error, match=why):
            native_host.session(**{"working_dir": repository.path, "workspace": "clone", **options})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_a_writable_directory_around_the_project_does_not_open_it(
    native_host: Host, repository: Repository, tmp_path: Path
) -> None:
    before = state_of(repository)
    policy = Policy(Filesystem(write=(".", str(tmp_path))))
    async with native_host.session(working_dir=repository.path, workspace="clone", policy=policy) as session:
        write = f"touch {repository.path}/evil {repository.path}/.git/evil {tmp_path}/ran"
        await run(session, f"!git config core.fsmonitor '{write}; false' && {write} && rm {tmp_path}/ran && git status")
        (tmp_path / "ran").unlink()
        await session.clone_diff()  # it runs again, in the sandbox that packs the changes
        assert (tmp_path / "ran").exists()
        await session.clone_fetch()
        assert not (repository.path / "evil").exists()
        assert not (repository.path / ".git/evil").exists()
    assert state_of(repository)[0] == before[0]


@pytest.mark.slow
@pytest.mark.sampled(1)
async def test_names_in_other_directories_stay_protected(native_host: Host, repository: Repository, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    Repository(other)
    (other / ".env").write_text("SECRET")
    policy = Policy(Filesystem(write=(".", str(other))))
    async with native_host.session(working_dir=repository.path, workspace="clone", policy=policy) as session:
        assert "Read-only" in str((await session.execute(f"open('{other}/.git/config', 'a')")).text)
        assert "PermissionError" in str((await session.execute(f"open('{other}/.env')")).text)
        assert not (await session.execute(f"open('{other}/.vscode', 'w')")).ok
        await run(session, f"open('{other}/file', 'w'), open('.envrc', 'w'), open('.env', 'w')")


@pytest.mark.slow
async def test_a_clone_can_begin_with_uncommitted_changes(native_host: Host, repository: Repository) -> None:
    (repository.path / "b.txt").write_text("staged\n")
    repository.git("add", "b.txt")
    (repository.path / "a.txt").write_text("mine\n")
    (repository.path / "untracked").touch()
    before = state_of(repository)
    async with native_host.session(working_dir=repository.path, workspace="dirty-clone") as session:
        assert state_of(repository)[0::2] == before[0::2]
        assert await run(session, "!cat a.txt b.txt; echo *; git status --porcelain; git log -1 --format=%s%n%an") == (
            "mine\nstaged\na.txt b.txt\nUncommitted changes\ncellblock"
        )
        assert (await session.clone_diff()).files == ()  # they are not the session's
        await run(session, "!echo more >> a.txt && git commit -qam more")
        assert (await session.clone_fetch()).commits == 1
        assert (await session.clone_apply()).files == ("a.txt",)
    assert (repository.path / "a.txt").read_text() == "mine\nmore\n"
    assert repository.git("stash", "list") == ""


@pytest.mark.slow
async def test_a_clone_without_uncommitted_changes_begins_with_the_commit(native_host: Host, repository: Repository) -> None:
    async with native_host.session(working_dir=repository.path, workspace="dirty-clone") as session:
        assert await run(session, "!git rev-parse HEAD") == repository.git("rev-parse", "HEAD")


async def test_an_unfinished_merge_cannot_be_cloned(native_host: Host, repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "other")
    repository.commit(**{"a.txt": "other\n"})
    repository.git("checkout", "-q", "main")
    repository.commit(**{"a.txt": "main\n"})
    with pytest.raises(subprocess.CalledProcessError):
        repository.git("merge", "other")
    with pytest.raises(InvalidInputError, match=r"the uncommitted changes of .* cannot be cloned"):
        await native_host.session(working_dir=repository.path, workspace="dirty-clone").start()


@pytest.mark.parametrize("names", [("a:b", "a-b"), ("a%3Ab", "a:b"), ("a..b", "a.b"), (".x", "x"), ("x.lock", "x%2Elock")])
def test_each_name_has_a_reference_of_its_own(repository: Repository, names: tuple[str, str]) -> None:
    first, second = (f"refs/remotes/cellblock/{_as_reference(name)}" for name in names)
    repository.git("update-ref", first, "HEAD")
    assert first != second
    repository.git("check-ref-format", second)
