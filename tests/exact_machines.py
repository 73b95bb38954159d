"""A model in Python of what cells, undos, crashes, branches and other people do to the variables and files of a session."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from cellblock import CheckpointError, Exact
from cellblock.host.kernels.pairs import files_time
from processes import eventually
from session_machines import SessionMachine

VARIABLES = st.sampled_from(["x", "y"])
NAMES = ("a", "b", "d/c", "d/e")
FILES = st.sampled_from(NAMES)
WRITE = "import os\nos.makedirs('d', exist_ok=True)\nopen('{name}', 'w').write('{number}')"


@dataclass(frozen=True)
class State:
    """What a session has after some cells.

    Attributes:
        line: Their numbers.
        variables: Its variables.
        files: Its files.
        kept: Whether it can be gone back to.
        changed_by: Which cells have last changed its files; somebody else, if one is not there.
        elsewhere: Whether its files were kept in a branch.
    """

    line: tuple[int, ...] = ()
    variables: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    kept: bool = True
    changed_by: dict[str, int] = field(default_factory=dict)
    elsewhere: bool = False


class ExactMachine(SessionMachine):
    """One session with a directory of its own. Nothing waits, but for the clock of files when somebody else changes one.

    Attributes:
        keep: How many cells can be undone.
    """

    keep = 100

    def __init__(self) -> None:
        super().__init__()
        self.workspace = self.place / "workspace"
        self.workspace.mkdir()
        self.states = [State()]
        self.files: dict[str, str] = {}
        self.changed_by: dict[str, int] = {}
        """The cell that has last changed a file, or to whose state it was brought back; somebody else, if it is not there"""
        self.others: set[str] = set()
        """The files that somebody else, or a cell that has crashed, has ever written"""

    @initialize()
    def start(self) -> None:
        self.run(self._start())

    async def _start(self) -> None:
        self.session = self.host.session(working_dir=self.workspace, images_dir=self.place, recovery=Exact(keep=self.keep))
        await self.session.start()

    # -- what is done --------------------------------------------------------------------------------------------------

    @rule(name=VARIABLES)
    def assign(self, name: str) -> None:
        self.cell("pass", name, {})

    @rule(name=VARIABLES, file=FILES)
    def write(self, name: str, file: str) -> None:
        number = next(self.numbers)
        self.cell(WRITE.format(name=file, number=number), name, {file: str(number)})

    @rule(name=VARIABLES, file=FILES)
    def remove_by_shell(self, name: str, file: str) -> None:
        self.cell(f"!rm -f {file}", name, {file: ""})

    @rule(name=VARIABLES)
    def put(self, name: str) -> None:
        """Assign without a cell: that belongs to the state before the next one."""
        number = next(self.numbers)
        self.run(self.session.put(name, number))
        self.states[-1] = replace(self.states[-1], variables={**self.states[-1].variables, name: number})

    @rule(file=FILES)
    def upload(self, file: str) -> None:
        """Have somebody else write a file: no later undo takes it back."""
        content = f"uploaded {next(self.numbers)}"
        self.wait_for_clock()
        self.run(self.session.files.write(file, content))
        self.wait_for_clock()
        self.files = {**self.files, file: content}
        self.others.add(file)
        self.changed_by.pop(file, None)
        self.keep_files()

    @precondition(lambda self: len(self.states) > 1)
    @rule(cells=st.integers(1, 4))
    def undo(self, cells: int) -> None:
        cells = min(cells, len(self.states) - 1)
        if not self.states[-1 - cells].kept:
            with pytest.raises(CheckpointError, match="no checkpoint from before"):
                self.run(self.session.undo(cells))
            return
        undone = self.run(self.session.undo(cells))
        assert len(undone.cells) == cells
        # What a crashed cell has changed stays, and is named. So is what somebody else has saved before the files after a cell
        # were looked at: the cell may have changed it before.
        # A folder stays for a file of theirs in it.
        named = {*self.others, *(name.rpartition("/")[0] for name in self.others)} - {""}
        assert undone.files_left == "" or any(undone.files_left.startswith(repr(name)) for name in named), undone.files_left
        left, gone = {*self.states[-1].line}, self.states[-cells:]
        del self.states[-cells:]
        target = self.states[-1]
        left -= {*target.line}
        # What is missing comes back; what somebody else has changed stays, also between these cells.
        earlier, theirs = target.files, dict[str, str]()
        for one in gone:
            if one.kept and not one.elsewhere:
                new = {name: text for name, text in one.files.items() if text != earlier.get(name)}
                theirs |= {name: text for name, text in new.items() if name not in one.changed_by}
                earlier = one.files
        target = replace(target, files={**target.files, **theirs})
        back = {name for name in NAMES if name not in self.files or self.changed_by.get(name) in left}
        self.bring_back(back, target, {*theirs})

    @rule(name=VARIABLES, file=FILES)
    def crash(self, name: str, file: str) -> None:
        """Change a variable and a file, and die: the file stays as it is then."""
        number = next(self.numbers)
        self.wait_for_clock()
        code = f"{WRITE.format(name=file, number=number)}\n{name} = {number}; os._exit(3)"
        result = self.run(self.session.execute(code))
        lost = len(self.states) == 1 and not self.states[0].variables
        assert (result.status, result.state_lost) == ("died", lost), (result.text, result.not_undoable)
        self.wait_for_clock()
        self.files = {**self.files, file: str(number)}
        self.others.add(file)
        self.changed_by.pop(file, None)
        self.keep_files()

    @rule(name=VARIABLES, file=FILES)
    def adopt(self, name: str, file: str) -> None:
        """Go on with a branch in which cells have run."""
        (branch,) = self.run(self.session.fork())
        trunk, self.session = self.session, branch
        before = self.files
        for _ in range(2):
            number = next(self.numbers)
            self.cell(WRITE.format(name=file, number=number), name, {file: str(number)}, look=False)
        self.session = trunk
        self.run(trunk.adopt(branch))
        self.changed_by |= {one: self.states[-1].line[-1] for one in NAMES if self.files.get(one) != before.get(one)}
        self.states[-2] = replace(self.states[-2], elsewhere=True)
        self.keep_files()
        self.compare()

    # -- what is compared ----------------------------------------------------------------------------------------------

    def cell(self, code: str, name: str, changes: dict[str, str], *, look: bool = True) -> None:
        """Run a cell that assigns a variable and changes files to what `changes` says; those without content are removed."""
        number, state = next(self.numbers), self.states[-1]
        seen = "(globals().get('x'), globals().get('y'))"
        result = self.run(self.session.execute(f"before = {seen}\n{code}\n{name} = {number}\nbefore"))
        assert result.ok, result.text
        assert (result.return_value, result.not_undoable) == (str((state.variables.get("x"), state.variables.get("y"))), "")
        changed = {**self.files, **changes}
        self.changed_by |= {file: number for file in changes if changed[file] != self.files.get(file, "")}
        self.files = {file: text for file, text in changed.items() if text}
        made = State((*state.line, number), {**state.variables, name: number}, self.files, changed_by=dict(self.changed_by))
        self.states.append(made)
        kept = [place for place, one in enumerate(self.states) if one.kept and one.line]  # what is fresh needs no checkpoint
        for place in kept[: -self.keep - 1]:
            self.states[place] = replace(self.states[place], kept=False)
        if look:
            self.compare()

    def bring_back(self, names: set[str], target: State, theirs: set[str]) -> None:
        """Have some files as they were in another state; `theirs` were changed by somebody else."""
        for name in names:
            number = (target.line[-1] if target.line else 0) if target.elsewhere else target.changed_by.get(name)
            if number is None or name in theirs:
                self.changed_by.pop(name, None)
            else:
                self.changed_by[name] = number
        files = {name: (target.files if name in names else self.files).get(name) for name in NAMES}
        self.files = {name: text for name, text in files.items() if text is not None}
        self.keep_files()
        self.compare()

    def keep_files(self) -> None:
        """The state before the next cell has the files that there are now."""
        self.states[-1] = replace(self.states[-1], files=self.files, changed_by=dict(self.changed_by), elsewhere=False)

    def compare(self) -> None:
        assert {name: path.read_text() for name in NAMES if (path := self.workspace / name).exists()} == self.files

    def wait_for_clock(self) -> None:
        """Wait until what changes now has another time than what has changed before: the clock of files goes in steps."""
        now = time.time_ns()
        self.run(eventually(lambda: files_time() > now))
