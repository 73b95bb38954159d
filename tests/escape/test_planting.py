"""Attack 43: what could make a program of the host run something later cannot be planted, nor moved out of the way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellblock import Host, Session
from cellblock.common import config
from cellblock.host.kernels import family
from cellblock.walls.sandbox.policy import MAKEABLE, PROTECTED, SECRET, Filesystem, Policy
from cells import value
from processes import eventually

from .conftest import arm, armed_session

Attack = Callable[[str], Awaitable[object]]


def git(*arguments: str, place: Path) -> str:
    """Run the host's git, without a configuration of the user's."""
    command = ["git", "-c", "user.name=x", "-c", "user.email=x", "-C", str(place), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def attack(attacked_host: Host, workspace: Path) -> Attack:
    """Start a session in the workspace, as it is now, and return what a cell evaluates to."""

    async def run(code: str) -> object:
        async with armed_session(attacked_host, workspace, recovery="none") as session:
            return await value(session, code)

    return run


@pytest.mark.parametrize("kind", ["file", "directory"])
async def test_what_runs_code_is_read_only(attack: Attack, workspace: Path, kind: str) -> None:
    names = [name for name in PROTECTED if name not in (".git", *SECRET)]
    for name in names:
        (workspace / name).write_text("ours") if kind == "file" else (workspace / name).mkdir()
    below, removal, replaced = ("", "unlink", "EBUSY") if kind == "file" else ("/tasks.json", "rmdir", "EISDIR")
    attacks = (
        f"[write(name + {below!r}), answer(os.rename, name, 'moved'), answer(os.chmod, name, 0o777), write('evil') and None, "
        f"answer(os.replace, 'evil', name), answer(os.{removal}, name), answer(os.link, name, 'linked')]"
    )
    found = await attack(f"{{name: {attacks} for name in {names}}}")
    refused = ["EROFS", "EBUSY", "EROFS", None, replaced, "EBUSY", "EXDEV"]
    assert found == dict.fromkeys(names, refused)


async def test_a_repository_is_read_only(attack: Attack, workspace: Path) -> None:
    git("init", "-q", place=workspace)
    git("commit", "-q", "--allow-empty", "-m", "first", place=workspace)
    targets = ["config", "hooks/pre-commit", "HEAD", "info/attributes", "modules/evil/config", "commondir", "config.worktree"]
    code = f"""
import subprocess
[
    [write('.git/' + target) for target in {targets}],
    [answer(os.rename, '.git', '.git2'), answer(os.rename, '.git/hooks', '.git/h')],
    subprocess.run(['git', 'log', '--format=%s'], capture_output=True, text=True).stdout,
]
"""
    assert await attack(code) == [["EROFS"] * len(targets), ["EBUSY", "EROFS"], "first\n"]


async def test_the_git_of_the_host_runs_nothing_after_a_session(attack: Attack, workspace: Path, tmp_path: Path) -> None:
    """With everything tried that makes another configuration count, or hooks run."""
    git("init", "-q", place=workspace)
    mark = tmp_path / "mark"
    code = f"""
evil = '[core]\\n\\tfsmonitor = "touch {mark}; false"\\n\\thooksPath = evil\\n[extensions]\\n\\tworktreeConfig = true\\n'
answer(os.rename, '.git', '.git2')
answer(os.rename, '.git/hooks', '.git/old')
write('evil/config', evil), write('evil/HEAD', 'ref: refs/heads/main'), write('evil/pre-commit', '#!/bin/sh\\ntouch {mark}')
os.makedirs('evil/objects'), os.makedirs('evil/refs'), os.chmod('evil/pre-commit', 0o755)
write('.git/commondir', '../evil'), write('.git/config.worktree', evil), write('.git/config', evil)
write('.git/hooks/pre-commit', '#!/bin/sh\\ntouch {mark}'), answer(os.chmod, '.git/hooks/pre-commit', 0o755)
write('.gitmodules', '[submodule "x"]\\n\\tpath = x\\n\\turl = ../evil\\n')
"""
    await attack(code + "None; 1")
    git("status", place=workspace)
    git("commit", "-q", "--allow-empty", "-m", "x", place=workspace)
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["file", "link"])
async def test_a_repository_that_lies_elsewhere_cannot_be_exchanged(attack: Attack, workspace: Path, kind: str) -> None:
    (workspace / "real").mkdir()
    git("init", "-q", place=workspace / "real")
    if kind == "file":  # as in a worktree, or a submodule
        (workspace / ".git").write_text("gitdir: real/.git\n")
    else:
        (workspace / ".git").symlink_to("real/.git")
    answers = await attack(
        "[write('.git'), answer(os.unlink, '.git'), answer(os.rename, '.git', 'x'), write('evil'), answer(os.replace, 'evil', '.git')]"
    )
    assert answers == ["EROFS", "EBUSY", "EBUSY", None, "EBUSY"]
    if kind == "link":
        # What the link leads to, and the way there, are protected instead.
        assert await attack(
            "[write('real/.git/config'), answer(os.rename, 'real/.git', 'real/x'), answer(os.rename, 'real', 'x')]"
        ) == [
            "EROFS",
            "EBUSY",
            "EBUSY",
        ]


async def test_a_link_that_one_session_leaves_does_not_stop_the_next(attack: Attack, workspace: Path) -> None:
    """Wherever it leads: each of some names has a link to another place."""
    links = dict(zip(PROTECTED, ["/etc/passwd", "/nowhere", "inside", "../outside", "", "."], strict=False)) | {
        ".env": "/nowhere"
    }
    (workspace / "inside").write_text("inside")
    for name, target in links.items():
        (workspace / name).symlink_to(target or name)  # by a session whose policy allows that
    answers: Any = await attack(f"[[write(name), answer(os.unlink, name)] for name in {[*links]}]")
    assert all(answer in (["EROFS", "EBUSY"], ["EACCES", "EBUSY"]) for answer in answers), answers


async def test_what_a_protected_link_leads_to_is_protected(attack: Attack, workspace: Path) -> None:
    (workspace / "dotfiles").mkdir()
    (workspace / "dotfiles" / "bashrc").write_text("ours")
    (workspace / ".bashrc").symlink_to("dotfiles/bashrc")
    assert await attack("[write('dotfiles/bashrc'), answer(os.rename, 'dotfiles', 'x'), write('dotfiles/other')]") == [
        "EROFS",
        "EBUSY",
        None,
    ]


async def test_secrets_are_masked(attack: Attack, workspace: Path) -> None:
    (workspace / ".env").write_text("SECRET=1")
    (workspace / ".ssh").mkdir()
    (workspace / ".ssh" / "id").write_text("key")
    code = "[read('.env'), read('.ssh/id'), answer(os.listdir, '.ssh'), answer(os.chmod, '.env', 0o777), answer(os.rename, '.env', 'x'), answer(os.link, '.env', 'x')]"
    assert await attack(code) == ["EACCES", "EACCES", "EACCES", "EROFS", "EBUSY", "EXDEV"]
    assert await attack("os.mkdir('d'); [answer(os.rename, 'd', '.ssh'), answer(os.rename, '.ssh', 'd')]") == [
        "EBUSY",
        "EBUSY",
    ]


async def test_a_secret_behind_a_link_is_masked_too(attack: Attack, workspace: Path) -> None:
    (workspace / "secrets").mkdir()
    (workspace / "secrets" / "env").write_text("SECRET=1")
    (workspace / ".env").symlink_to("secrets/env")
    assert await attack("[read('.env'), read('secrets/env')]") == ["EACCES", "EACCES"]


@pytest.mark.parametrize("inside", [".", "app"])
async def test_variables_of_servers_cannot_be_planted(
    attack: Attack, workspace: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    """The program reads `.env` in its current directory, which the session can write, for parameters of MCP servers."""
    (workspace / ".git").mkdir()
    (workspace / inside).mkdir(exist_ok=True)
    monkeypatch.chdir(workspace / inside)
    monkeypatch.delenv("URL_OF_TEST", raising=False)
    code = f"""
write({inside!r} + '/planted', 'URL_OF_TEST=http://evil.example')
place = {inside!r} + '/.env'
[write(place, 'URL_OF_TEST=x'), answer(os.rmdir, place), answer(os.replace, {inside!r} + '/planted', place)]
"""
    outcomes = await attack(code)
    assert isinstance(outcomes, list)
    assert None not in outcomes
    assert "URL_OF_TEST" not in config.server_environment()
    assert not (workspace / inside / ".env").exists(), "what keeps the name is gone with the session"
    (workspace / inside / ".env").write_text("URL_OF_TEST=mine")
    assert await attack(f"write({inside!r} + '/.env', 'URL_OF_TEST=x')") is not None
    assert config.server_environment()["URL_OF_TEST"] == "mine"


async def test_variables_that_code_makes_where_nothing_is_kept_are_not_read(
    attack: Attack, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace)
    monkeypatch.delenv("URL_OF_TEST", raising=False)
    assert await attack("[write('.env', 'URL_OF_TEST=http://evil.example'), read('.env')]") == [
        None,
        "URL_OF_TEST=http://evil.example",
    ]
    assert "URL_OF_TEST" not in config.server_environment()
    # From now on it is like any other: nobody can tell whose it is.
    assert await attack("[read('.env'), write('.env')]") == ["EACCES", "EROFS"]
    assert "URL_OF_TEST" not in config.server_environment()


async def test_the_way_to_something_protected_cannot_be_renamed(native_host: Host, workspace: Path) -> None:
    (workspace / "tools" / "hooks").mkdir(parents=True)
    policy = Policy(filesystem=Filesystem(deny_write=("tools/hooks",)))
    async with armed_session(native_host, workspace, policy=policy) as session:
        code = "[answer(os.rename, 'tools', 'x'), write('tools/hooks/x'), write('tools/other')]"
        assert await value(session, code) == ["EBUSY", "EROFS", None]


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [".vscode", ".vscode/deeper", "."])
async def test_a_denial_wins_over_what_is_writable(workspace: Path, wanted: str) -> None:
    (workspace / ".vscode" / "deeper").mkdir(parents=True)
    policy = replace(Policy(), filesystem=Filesystem(write=(".", wanted)))
    async with (
        Host(isolate="native", policy=policy) as host,
        armed_session(host, workspace) as session,
    ):
        assert await value(session, "[write('.vscode/x'), write('.vscode/deeper/x')]") == ["EROFS", "EROFS"]


@pytest.mark.slow
async def test_files_that_python_runs_by_itself_are_not_run_on_the_host(
    attack: Attack, workspace: Path, tmp_path: Path
) -> None:
    """Neither by a zygote that starts later, nor by a kernel before it is confined."""
    mark = tmp_path / "mark"
    code = f"""
for name in ('sitecustomize', 'usercustomize', 'conftest', 'IPython', 'json', 'numpy', 'base64', 'resource', 'torch'):
    write(name + '.py', 'import os\\nos.mkdir("{mark}")\\n')
write('evil.pth', 'import os; os.mkdir("{mark}")')
write('pyvenv.cfg', 'home = /nowhere')
1
"""
    await attack(code)
    for launch in ("zygote", "spawn"):
        async with (
            Host(isolate="native", launch=launch) as host,
            host.session(working_dir=workspace, images_dir=tmp_path / "images") as session,
        ):
            assert await value(session, "6 * 7") == 42
    assert not mark.exists()


async def test_what_runs_code_cannot_be_made_in_a_project(attack: Attack, workspace: Path) -> None:
    (workspace / ".npmrc").write_text("")  # what makes it one
    names = [name for name in PROTECTED if name not in MAKEABLE]
    code = f"""
os.mkdir('evil'), write('file'), write('evil/tasks.json')
{{name: [
    write(name), write(name + '/tasks.json'), answer(os.mkdir, name), answer(os.symlink, 'evil', name),
    answer(os.rename, 'evil', name), answer(os.replace, 'file', name), answer(os.link, 'file', name),
    answer(os.rename, name, 'moved'), answer(os.rmdir, name), answer(os.chmod, name, 0o777), answer(os.listdir, name),
] for name in {names}}}
"""
    answers = [
        *("EISDIR", "EROFS", "EEXIST", "EEXIST"),
        *("EBUSY", "EISDIR", "EEXIST"),
        *("EBUSY", "EBUSY", "EROFS", []),
    ]
    assert await attack(code) == dict.fromkeys(names, answers)
    assert sorted(path.name for path in workspace.iterdir()) == [".npmrc", "evil", "file"]


@pytest.fixture
async def idle(native_host: Host, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Session]:
    """A session in a project, whose placeholders are removed soon."""
    monkeypatch.setattr(family, "QUIET", 0.03)
    (workspace / ".npmrc").write_text("")
    (workspace / "deep").mkdir()
    names = (*PROTECTED, "deep/settings")
    policy = Policy(filesystem=Filesystem(deny_write=names))
    async with native_host.session(working_dir=workspace, images_dir=tmp_path / "images", policy=policy) as session:
        yield await arm(session)


async def test_what_runs_while_an_idle_session_has_no_placeholders_creates_nothing(idle: Session, workspace: Path) -> None:
    """A thread of a kernel that reports nothing of it: the names are tried by every way that leads there."""
    code = f"""
import sys, threading, time
sys.modules["cellblock.worker.forks.safety"].threads_run_now = lambda: False
heard, here, deep = set(), os.open('.', os.O_RDONLY), os.open('deep', os.O_RDONLY)
os.mkdir('evil')
def plant():
    while True:
        for name in {[".vscode", ".mcp.json", ".env", ".git/../.claude"]}:
            heard.update([answer(os.mkdir, name), answer(lambda: os.mkdir(name, dir_fd=here)), answer(os.rename, 'evil', name),
                          answer(os.symlink, 'evil', name), answer(os.chmod, name, 0o700), answer(os.rmdir, name)])
        heard.update([answer(lambda: os.mkdir('settings', dir_fd=deep)), answer(os.rename, 'deep', 'moved')])
        time.sleep(0.0005)
threading.Thread(target=plant, daemon=True).start()
"""
    assert (await idle.execute(code)).ok
    for _ in range(3):
        await eventually(
            lambda: sorted(os.listdir(workspace)) == [".npmrc", "deep", "evil"] and not os.listdir(workspace / "deep")
        )
        found = set(await value(idle, "sorted(map(str, heard))"))
        assert "EROFS" in found
        assert found <= {"EROFS", "EEXIST", "EBUSY", "ENOENT", "EPERM", "EACCES"}


async def test_what_the_user_makes_while_a_session_is_idle_is_protected(idle: Session, workspace: Path) -> None:
    assert (await idle.execute("write('.mise'), write('conf.json')")).ok
    await eventually(lambda: sorted(path.name for path in workspace.iterdir()) == [".mise", ".npmrc", "conf.json", "deep"])
    (workspace / ".env").write_text("SECRET")
    (workspace / ".mcp.json").symlink_to("conf.json")
    (workspace / ".vscode").mkdir()
    (workspace / "deep" / "settings").write_text("")
    (workspace / ".npmrc").unlink()
    (workspace / ".npmrc").write_text("token")
    code = "[answer(lambda: open('.env').read()), answer(lambda: open('.npmrc').read())]"
    assert await value(idle, code) == ["EACCES", "EACCES"]
    names = [".env", ".mcp.json", "conf.json", ".vscode/x", "deep/settings", ".claude/x"]
    refused = await value(idle, f"[write(name) for name in {names}]")
    assert set(refused) <= {"EROFS", "EACCES"}
    assert await value(idle, "[write('free'), answer(os.rename, 'deep', 'x'), answer(os.unlink, '.env')]") == [
        None,
        "EBUSY",
        "EBUSY",
    ]


async def test_nothing_is_in_the_way_where_there_is_no_project(attack: Attack, workspace: Path) -> None:
    """What is not promised. In the session that comes next, what was made is protected."""
    assert await attack("[os.listdir(), write('.vscode/tasks.json'), write('.mcp.json')]") == [[], None, None]
    assert await attack("[write('.vscode/tasks.json'), write('.mcp.json'), write('.claude')]") == ["EROFS", "EROFS", "EISDIR"]


async def test_a_directory_in_a_repository_is_a_part_of_it(attacked_host: Host, workspace: Path) -> None:
    (workspace / ".git").mkdir()
    (workspace / "deep" / "er").mkdir(parents=True)
    async with armed_session(attacked_host, workspace / "deep" / "er") as session:
        assert await value(session, "[write('.vscode/x'), write('.env')]") == ["EROFS", "EISDIR"]


async def test_a_repository_and_start_up_files_can_be_made(attack: Attack) -> None:
    """What is not promised. In the session that comes next, they are protected."""
    names = [*sorted(MAKEABLE - {".git"}), ".git/config", "sub/.git/config", "sub/.vscode/tasks.json"]
    assert await attack(f"[write(name) for name in {names}]") == [None] * len(names)
    assert await attack(f"[write(name) for name in {names}]") == ["EROFS"] * (len(names) - 2) + [None] * 2


async def test_what_a_policy_denies_cannot_be_made(attacked_host: Host, workspace: Path) -> None:
    denied = {
        "secret": ("[write('secret'), write('secret/x')]", ["EISDIR", "EROFS"]),
        f"{workspace}/other": ("[write('other'), write('other/x')]", ["EISDIR", "EROFS"]),
        "a/b": ("[write('a/b'), answer(os.chmod, 'a', 0o777), answer(os.rename, 'a', 'x')]", ["EROFS", "EROFS", "EBUSY"]),
        "./.bashrc": ("[write('.bashrc'), answer(os.rmdir, '.bashrc')]", ["EISDIR", "EBUSY"]),
        ".git/config": ("[write('.git/config'), answer(os.rename, '.git', 'x')]", ["EROFS", "EBUSY"]),
        "link": ("[write('link'), write('later'), answer(os.rmdir, 'later')]", ["EROFS", "EISDIR", "EBUSY"]),
    }
    (workspace / "link").symlink_to("later")
    policy = Policy(filesystem=Filesystem(deny_write=tuple(denied)))
    async with armed_session(attacked_host, workspace, policy=policy) as session:
        for name, (attempts, answers) in denied.items():
            assert await value(session, attempts) == answers, name
        assert await value(session, "[write('.vscode/x')]") == [None]  # nobody said anything about that
    assert sorted(path.name for path in workspace.iterdir()) == [".vscode", "link"]


async def test_what_runs_code_cannot_be_made_in_other_directories_either(
    native_host: Host, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (workspace / ".git").mkdir()
    (tmp_path / "other" / ".git").mkdir()
    policy = Policy(filesystem=Filesystem(write=(".", str(tmp_path / "other"))))
    async with armed_session(native_host, workspace, policy=policy) as session:
        assert await value(session, "[write('.vscode/x'), write('../other/.vscode/x')]") == ["EROFS", "EROFS"]
    assert [path.name for path in (*(tmp_path / "other").iterdir(), *workspace.iterdir())] == [".git", ".git"]


async def test_a_workspace_that_cannot_be_written_gets_no_placeholders(attacked_host: Host, tmp_path: Path) -> None:
    place = tmp_path / "sealed"
    (place / ".git").mkdir(parents=True)
    place.chmod(0o555)
    async with armed_session(attacked_host, place) as session:
        # Its owner can change the mode from inside, too: so they are there all the same.
        assert await value(session, "answer(os.chmod, '.', 0o755); [write('.vscode/x')]") == ["EROFS"]
    await eventually(lambda: [*place.iterdir()] == [place / ".git"])


@pytest.mark.slow
async def test_an_interpreter_inside_of_the_workspace_is_read_only(workspace: Path, jail: Session) -> None:
    import sys

    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", workspace / "tools" / "venv"], check=True
    )
    # It finds the packages of the interpreter that runs this.
    site = next(path for path in sys.path if path.endswith("site-packages"))
    place = next((workspace / "tools" / "venv" / "lib").glob("python*/site-packages"))
    (place / "outer.pth").write_text(f"{site}\n")
    async with (
        Host(isolate="native", python=workspace / "tools" / "venv") as host,
        armed_session(host, workspace) as session,
    ):
        code = """
[write('tools/venv/pyvenv.cfg'), write('tools/venv/bin/evil'), answer(os.rename, 'tools/venv', 'tools/x'), answer(os.rename, 'tools', 'x'),
 answer(os.unlink, 'tools/venv/bin/python'), write('tools/mine')]
"""
        assert await value(session, code) == ["EROFS", "EROFS", "EBUSY", "EBUSY", "EROFS", None]


@pytest.fixture
def superproject(workspace: Path, tmp_path: Path) -> Path:
    """A repository with a submodule, which has one, too, and with a worktree; returns the outer submodule."""
    allow = ("-c", "protocol.file.allow=always")
    for name in ("inner", "outer"):
        git("init", "-q", str(tmp_path / name), place=tmp_path)
        if name == "outer":
            git(*allow, "submodule", "--quiet", "add", str(tmp_path / "inner"), "deep", place=tmp_path / name)
        git("commit", "-q", "--allow-empty", "-m", "x", place=tmp_path / name)
    git("init", "-q", place=workspace)
    git(*allow, "submodule", "--quiet", "add", str(tmp_path / "outer"), "vendor/sub", place=workspace)
    git(*allow, "submodule", "--quiet", "update", "--init", "--recursive", place=workspace)
    git("commit", "-q", "-m", "x", place=workspace)
    git("worktree", "add", "-q", "tree", place=workspace)
    return workspace / "vendor" / "sub"


@pytest.mark.parametrize(
    "name", [*(pytest.param(path, marks=pytest.mark.slow) for path in ("vendor/sub", "tree")), "vendor/sub/deep"]
)
async def test_git_at_the_top_runs_nothing_of_a_submodule(
    attack: Attack, workspace: Path, superproject: Path, tmp_path: Path, name: str
) -> None:
    """A session that could swap the submodule's ``.git`` for a repository of its own would say what git runs to find changes."""
    proof = tmp_path / "proof"
    (workspace / "evil.sh").write_text(f"#!/bin/sh\ntouch {proof}\n")
    (workspace / "evil.sh").chmod(0o755)
    code = f"""
import subprocess
def swap(where):
    evil = where + '/own'
    subprocess.run(['git', 'init', '-q', evil], check=True)
    with open(evil + '/.git/config', 'a') as file: file.write('[core]\\n\\tfsmonitor = {workspace}/evil.sh\\n')
    os.rename(where + '/.git', where + '/old')
    os.rename(evil + '/.git', where + '/.git')
answer(swap, {name!r})
"""
    assert await attack(code) == "EBUSY"
    git("status", place=workspace)
    assert not proof.exists()
    # Nor can one be made that is not there.
    git("submodule", "--quiet", "deinit", "-f", "vendor/sub", place=workspace)
    assert await attack("answer(os.mkdir, 'vendor/sub/.git')") == "EEXIST"
    assert not (superproject / ".git").exists()
