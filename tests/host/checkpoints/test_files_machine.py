"""Files of sessions are what a model in Python says, whatever cells, uploads, checkpoints, undos and crashes follow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from cellblock import CheckpointError, Rolling
from cellblock.host.checkpoints import filing
from cellblock.host.kernels.pairs import files_time
from processes import eventually
from session_machines import SessionMachine, check, hosted

IN_FOLDER = ("d/c", "d/e")
NAMES = ("a", "b", *IN_FOLDER)
FILES = st.sampled_from(NAMES)
WRITE = "import os\nos.makedirs('d', exist_ok=True)\nopen('{name}', 'w').write('NUMBER')"


class Kept(NamedTuple):
    """What a checkpoint has: the numbers of the cells that made its state, and its files, if it holds any."""

    line: tuple[int, ...]
    files: dict[str, str] | None


class FilesMachine(SessionMachine):
    """One session with a directory of its own, and a model of its files. Each cell sets `x` to its number."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace = self.place / "workspace"
        self.workspace.mkdir()
        self.line: tuple[int, ...] = ()
        self.files: dict[str, str] = {}
        self.changed_by: dict[str, int] = {}
        """The cell that has last changed a file, or to whose state it was brought back; somebody else, if it is not there"""
        self.others: set[str] = set()
        """The files that somebody else, or a cell that has crashed, has ever written"""
        self.first: dict[str, str] = {}
        self.origins: dict[tuple[int, ...], dict[str, int]] = {}
        """`changed_by` in each state"""
        self.automatic: dict[tuple[int, ...], dict[str, str]] = {}
        self.elsewhere = False
        """Whether a checkpoint of undone cells was restored. What these cells changed may no longer be known."""

    @initialize()
    def start(self) -> None:
        self.run(self._start())
        self.settle()

    async def _start(self) -> None:
        rolling = Rolling(keep=100, after=0.001, longest=10)
        self.session = self.host.session(working_dir=self.workspace, images_dir=self.place, recovery=rolling)
        await self.session.start()

    # -- what is done --------------------------------------------------------------------------------------------------

    @rule(name=FILES)
    def write(self, name: str) -> None:
        self.cell(WRITE.format(name=name), {name: "NUMBER"})

    @rule(name=FILES)
    def append_by_shell(self, name: str) -> None:
        self.cell(f"!mkdir -p d; printf +NUMBER >> {name}", {name: self.files.get(name, "") + "+NUMBER"})

    @rule(name=FILES)
    def remove_by_shell(self, name: str) -> None:
        self.cell(f"!rm -f {name}", {name: ""})

    @rule()
    def remove_folder(self) -> None:
        self.cell("import shutil\nshutil.rmtree('d', ignore_errors=True)", dict.fromkeys(IN_FOLDER, ""))

    @rule(name=FILES)
    def upload(self, name: str) -> None:
        """Have somebody else write a file: no later undo takes it back."""
        content = f"uploaded {next(self.numbers)}"
        self.run(self.session.files.write(name, content))
        self.files = {**self.files, name: content}
        self.changed_by.pop(name, None)
        self.others.add(name)
        self.settle()

    @precondition(lambda self: self.line)
    @rule(files=st.sampled_from(["shared", "copy"]))
    def keep(self, files: Any) -> None:
        checkpoint = self.run(self.session.checkpoint(files=files))
        self.named.append((checkpoint, Kept(self.line, self.files if files == "copy" else None)))
        self.settle()

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        checkpoint, kept = data.draw(st.sampled_from(self.named))
        if kept.files is None and self.automatic.get(kept.line) != self.files:
            return  # whose files are that have changed since is not promised (docs/checkpoints.md)
        self.elsewhere |= kept.line != self.line[: len(kept.line)]
        self.run(self.session.restore(checkpoint))
        self.go_to(kept, {*NAMES})

    @precondition(lambda self: self.line)
    @rule(cells=st.integers(1, 3))
    def undo(self, cells: int) -> None:
        cells = min(cells, len(self.line))
        before = {*self.line[:-cells]}
        kept = [kept for _, kept in self.named] + [Kept(*item) for item in self.automatic.items()]
        found = [one for one in kept if {*one.line} <= before]
        try:
            undone = self.run(self.session.undo(cells))
        except CheckpointError:  # it would go back further, or files would stay
            undone = self.run(self.session.undo(cells, partial=True))
        else:
            assert len(undone.cells) == cells
        to = max(reversed(found), key=lambda one: (len(one.line), one.files is not None)) if found else Kept((), self.first)
        assert len(undone.cells) == len(self.line) - len(to.line)
        if undone.files_left == "they are too old" and self.elsewhere:
            self.go_to(Kept(to.line, None), set())
            return
        # What somebody else, or a crashed cell, has changed stays, and is named; so does a folder for it.
        may_stay = {*self.others, *(name.rpartition("/")[0] for name in self.others)} - {""}
        named = any(undone.files_left.startswith(repr(name)) for name in may_stay)
        assert (undone.files_left == "" or named) == (to.files is not None)
        # What is missing comes back; what somebody else has changed stays, also what they wrote between these cells.
        names = {name for name in NAMES if name not in self.files or self.changed_by.get(name, 0) in {*self.line} - {*to.line}}
        between = [self.line[:count] for count in range(len(to.line) + 1, len(self.line) + 1)]
        theirs: dict[str, str] = {}
        earlier = to.files or {}
        for line in between:
            files = self.automatic.get(line, earlier)
            new = {name: text for name, text in files.items() if text != earlier.get(name)}
            theirs |= {name: text for name, text in new.items() if name not in self.origins[line]}
            earlier = files
        if to.files is not None:
            to = to._replace(files={**to.files, **theirs})
        self.go_to(to, names, {**dict.fromkeys(NAMES), **self.origins.get(to.line, {}), **dict.fromkeys(theirs)})

    @precondition(lambda self: self.line)
    @rule(name=FILES)
    def crash(self, name: str) -> None:
        """Change a file and die: the file stays as it is then."""
        number = str(next(self.numbers))
        result = self.run(self.session.execute(f"{WRITE.format(name=name).replace('NUMBER', number)}; os._exit(3)"))
        assert (result.status, result.recovery) == ("died", "restored")
        self.files = {**self.files, name: number}
        self.changed_by.pop(name, None)
        self.others.add(name)
        self.settle()

    # -- what is compared ----------------------------------------------------------------------------------------------

    def cell(self, code: str, changes: dict[str, str]) -> None:
        """Run a cell that changes files to what `changes` says; those without content are removed."""
        number = next(self.numbers)
        result = self.run(self.session.execute(f"{code}\nx = NUMBER".replace("NUMBER", str(number))))
        assert result.ok, result.text
        changed = {**self.files, **{name: text.replace("NUMBER", str(number)) for name, text in changes.items()}}
        self.changed_by |= {name: number for name in changes if changed[name] != self.files.get(name)}
        self.files = {name: text for name, text in changed.items() if text}
        self.line = (*self.line, number)
        self.settle()

    def go_to(self, kept: Kept, names: set[str], origins: dict[str, int | None] | None = None) -> None:
        """Have another state, with the files that it has of some names, if it has any.

        Args:
            kept: The state.
            names: The names.
            origins: Which cells had changed these files; None: they count as those of this state.
        """
        self.line = kept.line
        left = {name for name, number in self.changed_by.items() if number not in kept.line}
        self.changed_by = {name: number for name, number in self.changed_by.items() if number in kept.line}
        if kept.files is not None:
            brought = {name for name in names if self.files.get(name) != kept.files.get(name)}
            # What was changed on the way is whose it was, even if it had this content already.
            last = dict.fromkeys(NAMES, kept.line[-1] if kept.line else 0) if origins is None else origins
            for name in brought | left:
                if (number := last[name]) is None:
                    self.changed_by.pop(name, None)
                else:
                    self.changed_by[name] = number
            files = {name: (kept.files if name in brought else self.files).get(name) for name in NAMES}
            self.files = {name: text for name, text in files.items() if text is not None}
        self.automatic = {line: files for line, files in self.automatic.items() if {*line} <= {*kept.line} and kept.line}
        self.settle()

    def settle(self) -> None:
        """Compare, and wait until the files are kept automatically."""
        assert {name: path.read_text() for name in NAMES if (path := self.workspace / name).exists()} == self.files
        automatic = self.session._checkpoints.automatic

        def kept() -> bool:
            if automatic.filing.skipped:  # they are kept again after an undo
                return False
            made = automatic.present()
            return (
                made is not None and made.snapshot is not None
                if self.line
                else self.session.cells.past.pairs.latest is not None
            )

        self.run(eventually(kept))
        done = time.time_ns()
        self.run(eventually(lambda: files_time() > done))  # the clock of files goes in steps
        self.origins[self.line] = dict(self.changed_by)
        if self.line:
            self.automatic[self.line] = self.files
        else:
            self.first = self.files


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FilesMachine]]:
    """The machine, with a loop and a host that keeps files at once."""
    monkeypatch.setattr(filing, "_AFTER", 0.001)
    with hosted(FilesMachine) as kind:
        yield kind


@pytest.mark.parametrize(
    ("examples", "steps"), [pytest.param(3, 8, id="few"), pytest.param(15, 30, id="many", marks=pytest.mark.slow)]
)
def test_files_are_what_the_model_says(machine: type[FilesMachine], examples: int, steps: int) -> None:
    check(machine, examples, steps)
