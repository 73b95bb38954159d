"""Git repositories for tests, whose objects can be invalid."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cellblock import Session

_HOSTILE = """
import os, subprocess
ran = "#!/bin/sh\\ntouch {mark} /tmp/ran\\ncat\\n"
for name in ("fsmonitor", "filter", "textconv"):
    path = os.path.abspath(f".git/{name}")
    open(path, "w").write(ran)
    os.chmod(path, 0o755)
os.makedirs(".git/hooks", exist_ok=True)
for name in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change", "pre-auto-gc"):
    open(f".git/hooks/{name}", "w").write(ran)
    os.chmod(f".git/hooks/{name}", 0o755)
settings = {
    "core.fsmonitor": os.path.abspath(".git/fsmonitor"),
    "filter.evil.clean": os.path.abspath(".git/filter"),
    "filter.evil.smudge": os.path.abspath(".git/filter"),
    "diff.evil.textconv": os.path.abspath(".git/textconv"),
    "diff.external": os.path.abspath(".git/textconv"),
    "uploadpack.packObjectsHook": os.path.abspath(".git/filter"),
    "gc.recentObjectsHook": os.path.abspath(".git/filter"),
    "core.attributesFile": os.path.abspath(".git/attributes"),
}
for name, value in settings.items():
    subprocess.run(["git", "config", name, value], check=True)
open(".git/attributes", "w").write("* filter=evil diff=evil\\n")
open("a.txt", "w").write("changed\\n")
"""


class Repository:
    """A git repository for tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "-b", "main")
        self.git("config", "user.name", "Ada")
        self.git("config", "user.email", "ada@example.org")

    @classmethod
    def at(cls, path: Path) -> Repository:
        """Return the repository that is at a path."""
        found = cls.__new__(cls)
        found.path = path
        return found

    def git(self, *arguments: str, data: bytes = b"") -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, input=data, capture_output=True, check=True)
        return done.stdout.decode(errors="surrogateescape").strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.path / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", "a commit")
        return self.git("rev-parse", "HEAD")

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """Write a tree as it is, whether or not git would, of modes, names and hashes."""
        raw = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(number) for mode, name, number in entries)
        return self.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", data=raw)

    def blob(self, text: str) -> str:
        return self.git("hash-object", "-w", "--stdin", data=text.encode())

    def commit_tree(self, tree: str) -> str:
        return self.git("commit-tree", tree, "-m", "a commit")

    def pack(self, out: Path, *objects: str, thin: str = "") -> None:
        """Write a pack of objects, or of commits without what a base has."""
        data = "\n".join(objects) + (f"\n^{thin}" if thin else "") + "\n"
        options = ("--revs", "--thin") if thin else ()
        command = ["git", "pack-objects", *options, "--stdout", "--quiet"]
        done = subprocess.run(command, cwd=self.path, input=data.encode(), capture_output=True, check=True)
        (out / "changes.pack").write_bytes(done.stdout)


def hostile(mark: Path) -> str:
    """Return code that has git run programs by settings, hooks and filters, which make a file if they can."""
    return _HOSTILE.replace("{mark}", str(mark))


async def run(session: Session, code: str) -> str:
    """Run a cell, and return its text without blank space around it."""
    result = await session.execute(code)
    assert result.ok, result.text
    return (result.text or "").strip()
