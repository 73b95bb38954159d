"""Each prefix of a session's log, in each world that a killed host can leave: the next host's state is its kernel's."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from cellblock.host.kernels.pairs import Instant
from cellblock.host.kernels.session_state import SessionState, StateWriter
from cellblock.host.kernels.state_events import (
    Abandoned,
    Copied,
    Dropped,
    Event,
    Going,
    Placed,
    RedosDropped,
    Renewed,
    Saved,
    Stayed,
    Undid,
    Unsent,
    Way,
    Went,
)
from cellblock.host.survival.reconciling import LeftKernel, World, kernel_to_continue, reconcile
from cellblock.model import HistoryEntry
from suite import first_quick

_NOW = Instant(0, 0)


@dataclass(frozen=True)
class Kernel:
    """A kernel of the model: the cells that its variables are from."""

    number: int
    memory: tuple[str, ...] = ()
    cells: int = 0
    replacing: bool = False

    @property
    def position(self) -> str:
        return f"{self.number}/{self.cells}"


@dataclass
class Killed:
    """What a host leaves that is killed at one point."""

    written: int
    kernels: dict[int, Kernel]
    copies: dict[str, tuple[str, ...]]
    redoable: list[tuple[str, ...]] | None = None
    """The cells that each redo brings back, oldest first; None while something is done."""


@dataclass
class Model(StateWriter):
    """A host with one session, whose effects are numbers; it notes what would be left after each event and each effect."""

    chance: random.Random
    state: SessionState = field(default_factory=SessionState)
    kernels: dict[int, Kernel] = field(default_factory=dict)
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    written: list[bytes] = field(default_factory=list)
    left: list[Killed] = field(default_factory=list)
    current: int = 0
    at_once: bool = False
    undone: list[tuple[str, ...]] = field(default_factory=list)
    lines: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The cells of each state to which something went."""
    names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.written.append(pickle.dumps(self.state))
        self.state.log = self
        self.reset("fresh")

    def write(self, event: Event) -> None:
        """See `StateWriter`."""
        self.written.append(pickle.dumps(event))
        if not self.at_once:
            self.note()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write events in one piece, because nothing else happens between them."""
        self.at_once = True
        yield
        self.at_once = False
        self.note()

    def note(self, redoable: list[tuple[str, ...]] | None = None) -> None:
        self.left.append(Killed(len(self.written), {**self.kernels}, {**self.copies}, redoable))

    def _put(self, kernel: Kernel) -> None:
        self.kernels[kernel.number] = kernel
        self.note()

    def _make(self, memory: tuple[str, ...]) -> int:
        kernel = Kernel(next(self.names), memory)
        self._put(kernel)
        return kernel.number

    def _end(self, number: int) -> None:
        if self.kernels.pop(number, None) is not None:
            self.note()

    def cell(self) -> None:
        for dead in [one.number for one in self.kernels.values() if one.replacing]:
            self._end(dead)
        code, kernel = f"c{next(self.names)}", self.kernels[self.current]
        self.state.begin(kernel.position)
        if self.chance.random() < 0.2:
            self.state.commit(Unsent())
            return
        self.undone.clear()
        if self.chance.random() < 0.2:
            self._put(replace(kernel, cells=kernel.cells + 1, memory=(*kernel.memory, code)))
            self.crash(code)
            return
        self._put(replace(kernel, cells=kernel.cells + 1, memory=(*kernel.memory, code)))
        self.state.add(HistoryEntry(code, "success", 1))
        if self.chance.random() < 0.9:
            self.copy()

    def look(self) -> None:
        """Run a cell that only reads variables."""
        kernel = self.kernels[self.current]
        self.state.begin(kernel.position, looks=True)
        if self.chance.random() < 0.2:
            self.state.commit(Unsent())
        else:
            self._put(replace(kernel, cells=kernel.cells + 1))

    def copy(self, *, passing: bool = False) -> str:
        name = f"cp{next(self.names)}"
        self.copies[name] = self.kernels[self.current].memory
        self.note()
        self.state.commit(Copied(Saved.new("", not passing, 1, 1, 1, passing, False)._replace(id=name)))
        return name

    def crash(self, code: str) -> None:
        dead = self.kernels[self.current]
        self._put(replace(dead, replacing=True))
        line = [cell.number for cell in self.state.line]
        found = [one for one in self.state.checkpoints.values() if not one.line or one.line[-1].number in line]
        if found:
            target = max(found, key=lambda one: (len(one.line), one.state))
            self.state.commit(Going(target.id, "crash", _NOW, 1))
            made = self._make(self.copies[target.id])
        else:
            self.state.commit(Going("", "fresh", _NOW))
            made = self._make(())
        with self.together():
            if found:
                self.state.go_to(target.line, target.state, _NOW)
            else:
                self.state.begin_anew()
            self.state.commit(Placed(made))
        self._arrived(made)
        self.state.add(HistoryEntry(code, "died", None, abandoned=bool(found)), died=True)
        self._drop_others()

    def _arrived(self, kernel: int) -> None:
        self.current, self.lines[self.state.state] = kernel, codes(self.state)

    def go(self, way: Way, target: Saved | None = None, aside: tuple[str, ...] = ()) -> None:
        if not self.state.checkpoints:
            return
        target = target or self.state.checkpoints[self.chance.choice([*self.state.checkpoints])]
        if way == "restore":
            self.undone.clear()
        self.state.commit(Going(target.id, way, _NOW))
        made = self._make(self.copies[target.id])
        with self.together():
            self.state.commit(Placed(made))
            self.state.go_to(target.line, target.state, _NOW)
        self._end(self.current)
        self._arrived(made)
        self._drop_others(aside)

    def undo(self, *, everything: bool = False) -> None:
        """Undo some cells, mostly in a way that can be reverted."""
        name, pairs, fresh = self.copy(), self.state.pairs.copied(lambda files: files), self.state.fresh
        saved, undone = self.state.checkpoints[name], [*self.undone, codes(self.state)]
        targets = [one for one in self.state.checkpoints.values() if one.line and len(one.line) < len(saved.line)]
        if not (targets or everything):
            return
        target = None if everything else self.chance.choice(targets)
        since, line = (fresh, ()) if target is None else (target.state, target.line)
        later = [one.id for one in self.state.checkpoints.values() if len(line) < len(one.line) and one.id != name]
        aside = (*later, name)
        if target is None:
            self.lines[fresh] = ()
            self.reset("undo", aside)
        else:
            self.go("undo", target, aside)
        self.undone = []
        if self.chance.random() < 0.1:
            for one in aside:
                del self.copies[one]
                self.state.commit(Dropped(one))
            return
        self.state.commit(Undid(aside, pairs, since, fresh))
        self.undone = undone

    def redo(self) -> None:
        """Revert the last undo, or fail to."""
        if not self.state.redoable:
            return
        undid = self.state.redoable[-1]
        self.rewrite(self.state.to_come_back())
        self.state.commit(Going(undid.checkpoints[-1], "redo", _NOW, since=undid.since))
        made = self._make(self.copies[undid.checkpoints[-1]])
        if self.chance.random() < 0.2:
            self._end(made)
            with self.together():
                self.state.commit(Stayed())
                self.rewrite()
            return
        with self.together():
            self.state.commit(Placed(made))
            self.state.come_back()
            self.state.checkpoints |= {one.id: one for one in undid.saved}
            self.rewrite()
        self._end(self.current)
        self._arrived(made)
        self.undone.pop()

    def relieve(self) -> None:
        """Give up what can be redone, because memory is short."""
        self.undone.clear()
        for undid in self.state.redos:
            for one in undid.checkpoints:
                self.copies.pop(one, None)
        self.state.commit(RedosDropped(0))

    def rewrite(self, state: SessionState | None = None) -> None:
        """See `StateWriter`."""
        self.written.append(pickle.dumps(state or self.state))
        if not self.at_once:
            self.note()

    def reset(self, way: Way, aside: tuple[str, ...] = ()) -> None:
        """Begin with a fresh kernel."""
        self.undone = []
        self.state.commit(Going("", way, _NOW))
        self._end(self.current)
        made = self._make(())
        with self.together():
            if way == "undo":
                self.state.commit(Abandoned([cell.number for cell in self.state.line]))
            self.state.begin_anew()
            self.state.commit(Placed(made))
        self._arrived(made)
        self._drop_others(aside)

    def _drop_others(self, aside: tuple[str, ...] = ()) -> None:
        """Drop the checkpoints of other lines, except those set aside for a redo."""
        line = [cell.number for cell in self.state.line]
        for one in [*self.state.checkpoints.values()]:
            if one.id not in aside and one.line and one.line[-1].number not in line:
                del self.copies[one.id]
                self.state.commit(Dropped(one.id))

    def read(self, left: Killed) -> SessionState:
        found = SessionState.read([pickle.loads(one) for one in self.written[: left.written]])
        assert found is not None
        return found


def codes(state: SessionState | Saved) -> tuple[str, ...]:
    return tuple(cell.entry.code for cell in state.line)


def worlds(left: Killed) -> Iterator[Killed]:
    """Yield what may be left: as it was, and without some of the processes."""
    yield left
    for kernels in ({}, left.kernels):
        yield Killed(left.written, kernels, {})
        for lost in left.copies:
            yield Killed(left.written, kernels, {name: one for name, one in left.copies.items() if name != lost})
    yield Killed(left.written, {}, left.copies)
    yield Killed(left.written, {number: one for number, one in left.kernels.items() if not one.replacing}, left.copies)


def check(state: SessionState, left: Killed, lines: dict[int, tuple[str, ...]]) -> None:
    kernels = [LeftKernel(one.number, one.cells, one.replacing) for one in left.kernels.values()]
    number, unrecorded = kernel_to_continue(state, kernels)
    kernel = left.kernels.get(number)
    copies = {*left.copies}
    world = World(copies) if kernel is None else World(copies, number, kernel.position, unrecorded)
    steps = reconcile(state, world)
    for event in steps.events:
        state.apply(event)
    again = reconcile(state, replace_world(world))
    assert not again.events, "what is done once needs to be done once"
    assert {*state.checkpoints} <= copies
    assert {*steps.drop} <= copies
    for saved in state.saved:
        assert left.copies.get(saved.id, codes(saved)) == codes(saved)
    present = codes(state)
    for undid in reversed(state.redoable):
        assert undid.saved[-1].id in copies
        assert lines[undid.since] == present, "the undo went to another state"
        present = codes(undid.saved[-1])
    if steps.start is not None:
        assert kernel is None
        assert steps.start.id in copies
        assert {cell.number for cell in steps.start.line} <= {cell.number for cell in state.line}
    if kernel is None:
        return
    assert state.kernel == number
    if kernel.replacing:  # its last result comes first, and then what follows from its death
        assert not any(isinstance(event, (Went, Renewed)) for event in steps.events)
        return
    if steps.finish is not None and steps.finish.way == "redo":  # the state is the one that it is about to reach
        assert steps.finish.checkpoint not in copies or left.copies[steps.finish.checkpoint] == codes(state)
        return
    runs = not state.cell.added and state.cell.position == f"{number}/{kernel.cells - 1}"
    assert kernel.memory in ([codes(state)] if not runs else [codes(state), (*codes(state), *kernel.memory[-1:])])
    if unrecorded:
        assert steps.finish is None
        assert state.going is None


def replace_world(world: World) -> World:
    return world._replace(unrecorded=False)


@pytest.mark.parametrize("seed", first_quick(range(25)))
def test_each_prefix_in_each_world(seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance)
    for _ in range(14):
        match chance.randrange(16):
            case 0 | 1 | 2:
                model.undo()
            case 3:
                model.go("restore")
            case 4:
                model.undo(everything=True)
            case 5:
                model.reset("fresh")
            case 6:
                model.copy(passing=True)
            case 7 | 8 | 9:
                model.redo()
            case 10:
                model.look()
            case 11 if chance.random() < 0.3:
                model.relieve()
            case _:
                model.cell()
        model.note([*model.undone])
    for left in model.left:
        state = model.read(left)
        assert left.redoable in (None, [codes(undid.saved[-1]) for undid in state.redoable])
        for world in worlds(left):
            check(model.read(left), world, model.lines)


def test_a_change_of_state_with_files_is_finished_and_a_passing_checkpoint_stays_until_then() -> None:
    model = Model(random.Random(0))
    name = model.copy(passing=True)
    model.state.commit(Going(name, "restore", _NOW))
    kernel = model.kernels[model.current]
    world = World({name}, kernel.number, kernel.position)
    steps = reconcile(model.state, world)
    assert (steps.finish, [*steps.drop]) == (model.state.going, [])
    model.state.go_to((), model.state.state, _NOW)
    steps = reconcile(model.state, world)
    assert (steps.finish, [*steps.drop]) == (None, [name])


def test_a_session_without_undo_gets_a_fresh_kernel() -> None:
    model = Model(random.Random(0))
    name = model.copy()
    assert reconcile(model.state, World({name})).start is not None
    assert reconcile(model.state, World({name}, recovers=False)).start is None
    model.state.commit(Going("", "fresh", _NOW))
    assert reconcile(model.state, World({name})).start is None


def test_a_kernel_is_chosen_without_a_state() -> None:
    assert kernel_to_continue(None, []) == (0, False)
    assert kernel_to_continue(None, [LeftKernel(3), LeftKernel(5)]) == (5, False)
