"""Sessions do what a model in Python says, whatever cells, checkpoints and crashes follow each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from cellblock import CheckpointError, Host, Rolling, Session, StateError
from cellblock.host.checkpoints import filing
from histories import play
from processes import eventually
from session_machines import SessionMachine, check, hosted

NAMES = st.sampled_from(["a", "b"])
LOOK = "{name: globals()[name] for name in 'ab' if name in globals()}"


@dataclass(frozen=True)
class State:
    """What a kernel has: its variables, its count, the numbers of the cells that made it, and who started it."""

    variables: dict[str, list[int]] = field(default_factory=dict)
    count: int = 0
    line: tuple[int, ...] = ()
    family: int = 0


class CheckpointMachine(SessionMachine):
    """One session, and a model of it. Each cell ends with a look at the variables, and has a number in a comment."""

    def __init__(self) -> None:
        super().__init__()
        self.families = count(1)
        self.state = State()
        self.rolling: Rolling | None = None
        self.history: dict[int, bool] = {}
        self.ended: dict[int, int] = {}
        self.automatic: list[State] = []

    @initialize(keep=st.sampled_from([0, 1, 2, 5]))
    def start(self, keep: int) -> None:
        """Begin, without automatic checkpoints or with a few."""
        self.rolling = Rolling(keep=keep, after=0.001, longest=10) if keep else None
        self.run(self._start())

    async def _start(self) -> None:
        self.session = self.host.session(images_dir=self.place, recovery=self.rolling or "none")
        await self.session.start()
        await self.look()

    # -- what is done --------------------------------------------------------------------------------------------------

    @rule(name=NAMES)
    def assign(self, name: str) -> None:
        self.run(self.cell(f"{name} = [NUMBER]", name, lambda old, number: [number]))

    @rule(name=NAMES)
    def append(self, name: str) -> None:
        self.run(self.cell(f"{name}.append(NUMBER)", name, lambda old, number: None if old is None else [*old, number]))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.run(self.cell(f"{name} = 0\ndel {name}", name, lambda old, number: None))

    @rule()
    def keep(self) -> None:
        self.named.append((self.run(self.session.checkpoint(f"after {self.state.count}")), self.state))
        self.run(self.rolled())

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        checkpoint, state = data.draw(st.sampled_from(self.named))
        self.run(self.session.restore(checkpoint))
        self.go_to(state)
        self.run(self.rolled())

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.named))
        self.named.remove(chosen)
        self.run(chosen[0].drop())

    @rule(cells=st.integers(1, 4))
    def undo(self, cells: int) -> None:
        self.run(self._undo(cells))

    async def _undo(self, cells: int) -> None:
        line = self.state.line
        before = {*line[:-cells]} if cells <= len(line) else {*line}
        found = [state for state in self.kept if {*state.line} <= before]
        if cells > len(line):
            with pytest.raises(CheckpointError):
                await self.session.undo(cells, partial=True)
            await self.rolled()
            return
        to = max(found, key=lambda state: len(state.line)) if found else None
        left = [number for number in line if to is None or number not in to.line]
        try:
            undone = await self.session.undo(cells)
        except CheckpointError:  # it would go back further, or to a state that was changed since
            undone = await self.session.undo(cells, partial=True)
        else:
            assert len(left) == cells
        assert [number_of(cell.code) for cell in undone.cells] == left
        assert undone.execution_count == (to.count if to is not None else 0)
        if to is not None:
            self.go_to(to)
        else:
            self.history |= dict.fromkeys(line, True)
            self.begin_anew()
            await self.look()
        await self.rolled()

    @rule(cells=st.integers(0, 2))
    def adopt(self, cells: int) -> None:
        self.run(self._adopt(cells))

    async def _adopt(self, cells: int) -> None:
        """Work in one of two branches, and go on from there with its checkpoints; the other one changes nothing."""
        branch, other = await self.session.fork(2)
        await other.execute("a = b = ['other']")
        state = self.state
        made = [state]
        await self.has_automatic(branch, made)
        for _ in range(cells):
            number = next(self.numbers)
            result = await branch.execute(f"a = [{number}]  # {number}")
            assert (result.status, result.execution_count) == ("success", state.count + 1)
            state = State(state.variables | {"a": [number]}, state.count + 1, (*state.line, number), state.family)
            made.append(state)
            await self.has_automatic(branch, made)
        await self.session.adopt(branch)
        if self.rolling is not None:
            self.automatic += [one for one in made[-self.rolling.keep : -1] if one not in self.automatic]
        with pytest.raises(StateError, match="was adopted by"):
            await branch.execute("a")
        await other.close()
        self.go_to(state)
        await self.rolled()

    @rule()
    def reset(self) -> None:
        self.run(self._reset())

    async def _reset(self) -> None:
        await self.session.reset()
        self.begin_anew()
        await self.look()

    @rule(name=NAMES)
    def crash(self, name: str) -> None:
        self.run(self._crash(name))

    async def _crash(self, name: str) -> None:
        number = next(self.numbers)
        result = await self.session.execute(f"{name} = [{number}]\nimport os; os._exit(3)  # {number}")
        line = {*self.state.line}
        found = [one for one in self.kept if one.family == self.state.family and {*one.line} <= line] if self.rolling else []
        expected = ("died", "restored", False) if found else ("died", "restarted", True)
        assert (result.status, result.recovery, result.state_lost) == expected
        if found:
            self.go_to(max(found, key=lambda state: len(state.line)))
        else:
            self.begin_anew()
        self.history[number] = bool(found)
        await self.look()

    # -- what is compared ----------------------------------------------------------------------------------------------

    @property
    def kept(self) -> list[State]:
        return [*self.automatic, *(state for _, state in self.named)]

    def begin_anew(self) -> None:
        line, self.state = self.state.line, State(family=next(self.families))
        self.ended |= dict.fromkeys(line, self.state.family)
        self.automatic.clear()

    def go_to(self, state: State) -> None:
        ended = [number for number, family in self.ended.items() if family > state.family]
        self.history |= {number: number not in state.line for number in (*ended, *self.state.line, *state.line)}
        self.ended = {number: family for number, family in self.ended.items() if family <= state.family}
        self.state = state
        self.automatic = [one for one in self.automatic if {*one.line} <= {*state.line}]

    async def look(self) -> None:
        await self.cell("pass", "a", lambda old, _: old)

    async def cell(self, code: str, name: str, change: Any) -> None:
        """Run a cell, which changes one variable to what `change` returns for its old value, and compare."""
        number, old = next(self.numbers), self.state.variables.get(name)
        new = change(old, number)
        fails = ".append" in code and old is None
        variables = {key: value for key, value in {**self.state.variables, name: new}.items() if value is not None}
        result = await self.session.execute(f"{code.replace('NUMBER', str(number))}\n{LOOK}  # {number}")
        self.state = State(variables, self.state.count + 1, (*self.state.line, number), self.state.family)
        self.history[number] = False
        assert (result.status, result.execution_count) == ("error" if fails else "success", self.state.count)
        if not fails:
            assert eval(result.return_value or "") == variables
        await self.rolled()
        assert {number_of(entry.code): entry.abandoned for entry in self.session.history()} == self.history

    async def rolled(self) -> None:
        """Wait until the present state has the checkpoint that it gets without being asked for."""
        assert self.session.next_count == self.state.count + 1
        if self.rolling is None:
            assert not self.session._checkpoints.automatic.all()
            return
        if self.state not in self.automatic:
            self.automatic = [*self.automatic, self.state][-self.rolling.keep :]
        await self.has_automatic(self.session, self.automatic)

    async def has_automatic(self, session: Session, states: list[State]) -> None:
        """Wait until a session has its checkpoints of these states, as many as are kept, and no others."""
        if self.rolling is None:
            return
        expected = [state.line for state in states[-self.rolling.keep :]]

        def as_expected() -> bool:
            found = [one.moment.past for one in session._checkpoints.automatic.all()]
            return [tuple(number_of(entry.code) for _, entry, _ in past) for past in found] == expected

        await eventually(as_expected)


def number_of(code: str) -> int:
    return int(code.rpartition("# ")[2])


@pytest.fixture
def machine() -> Iterator[type[CheckpointMachine]]:
    """The machine, with a loop and a host."""
    with hosted(CheckpointMachine) as kind:
        yield kind


@pytest.mark.parametrize(
    ("examples", "steps"), [pytest.param(1, 7, id="few"), pytest.param(25, 25, id="many", marks=pytest.mark.slow)]
)
def test_a_session_does_what_its_model_says(machine: type[CheckpointMachine], examples: int, steps: int) -> None:
    check(machine, examples, steps)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(3))
async def test_files_of_a_session_without_exact_undo_are_not_lost(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are those restored that an undo may not restore: if they were not saved in time, it is refused."""
    monkeypatch.setattr(filing, "_AFTER", 0.001)
    rolling = Rolling(keep=100, after=0.001, longest=10)
    async with Host(isolate="none") as host:
        await play(lambda workspace: host.session(working_dir=workspace, recovery=rolling), tmp_path, 60, f"rolling {part}")
