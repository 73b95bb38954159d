"""The figures that are reported: which number of which series, and what it should be."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Results = dict[str, dict[str, list[dict[str, list[float]]]]]
"""step → system → rounds → series → samples"""


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the value below which this share of the samples lies."""
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


_NUMBERS: dict[str, Callable[[Sequence[float]], float]] = {
    "p50": statistics.median,
    "p95": lambda samples: percentile(samples, 0.95),
    "p99": lambda samples: percentile(samples, 0.99),
    "max": max,
    "min": min,
    "sum": sum,
}


@dataclass(frozen=True, slots=True)
class Value:
    """A figure of one system, as measured.

    Attributes:
        value: Over the samples of all rounds.
        low: That of the lowest round.
        high: That of the highest round.
        rounds: How many rounds there were.
        date: When.
    """

    value: float
    low: float
    high: float
    rounds: int
    date: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Attributes:
        title: What it is.
        step: The step whose results it is taken from.
        series: The series in them.
        number: Which number of the series.
        unit: Its unit.
        target: What cellblock's should at most be, or at least where more is better; None where it is only told.
        more_is_better: Whether it is a rate, and not a cost.
        times: How many times better than a peer it should be.
        chart: Whether it is drawn.
    """

    title: str
    step: str
    series: str
    number: str
    unit: str
    target: float | None = None
    more_is_better: bool = False
    times: Mapping[str, float] = field(default_factory=dict)
    chart: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from all others."""
        return self.step, self.series, self.number

    def of(self, results: Results, system: str, date: str) -> Value | None:
        """Return it over all rounds; None where it was not measured."""
        number = _NUMBERS[self.number]
        rounds = [one[self.series] for one in results.get(self.step, {}).get(system, []) if one.get(self.series)]
        if not rounds:
            return None
        single = [number(samples) for samples in rounds]
        whole = number([sample for samples in rounds for sample in samples])
        return Value(whole, min(single), max(single), len(rounds), date)

    def better(self, own: float, peer: float) -> float | None:
        """Return how many times better than a peer's one number is; None where that says nothing."""
        if self.number == "sum":
            return None  # of different numbers of cells
        above, below = (own, peer) if self.more_is_better else (peer, own)
        return above / below if above > 0 and below > 0 else None


_CREATE = {"ipybox": 300.0, "kernelbox": 50.0}
_TRIP = {"ipybox": 90.0, "kernelbox": 12.0}
_COMMAND = {"kernelbox": 3.0}
_MAKE, _LOADED = "new kernel to first result", "new kernel to first result, pandas + matplotlib"
_SANDBOXED = "sandboxed kernel to first result"
_DIRECT = "… the same call by the MCP SDK's own client"
_MANY, _WRITE = {"ipybox": 5.0}, {"ipybox": 3.0}
_APIS, _GENERATE = "a program that writes APIs for five MCP servers", "tools: generate"


def _checkpoints(suffix: str, *, chart: bool) -> tuple[Figure, ...]:
    """Return the figures of checkpoints, of sandboxed kernels or of others."""
    found: list[Figure] = []
    for held, title, made, back in (
        ("0 MB", "bare", 3, 5),
        ("100 MB", "100 MB of arrays", 5, 8),
        ("1000 MB", "1 GB of arrays", 10, 15),
        ("10 M objects", "10 million small objects", 10, 15),
    ):
        step = f"checkpoints: restore{suffix}"
        found += (
            Figure(f"checkpoint{suffix}, {title}, p50", step, f"checkpoint, {held}", "p50", "ms", made, chart=chart),
            Figure(f"restore to first result{suffix}, {title}, p50", step, f"restore, {held}", "p50", "ms", back, chart=chart),
            Figure("… a bare fork of a process of that size, its exit, the wait, p50", step, f"fork, {held}", "p50", "ms"),
        )
    undo, rolling = f"checkpoints: undo{suffix}", f"checkpoints: rolling{suffix}"
    return (
        *found,
        Figure(f"undo to first result{suffix}, bare, p50", undo, "undo", "p50", "ms", 5, chart=chart),
        Figure(f"`kill -9` in a cell to the next cell's result{suffix}, p50", undo, "recovery", "p50", "ms", 50, chart=chart),
        Figure(f"8 branches, each answering{suffix}, p50", f"checkpoints: fork{suffix}", "ms", "p50", "ms", 40, chart=chart),
        Figure(f"`x = 1` with rolling checkpoints{suffix}, more than without", rolling, "more, at once, %", "p50", "%", 10),
        Figure("… with a pause before each cell, in which there is one", rolling, "more, with pauses, %", "p50", "%"),
        Figure(f"one more parked checkpoint{suffix}, PSS", f"checkpoints: parked{suffix}", "MB", "p50", "MB", 2, chart=chart),
    )


def _exact() -> tuple[Figure, ...]:
    """Return the figures of sessions in which each cell can be undone."""
    found: list[Figure] = []
    targets = {("100 files", 0): 3.0, ("100 files", 10): 0.1}
    for workspace in ("empty", "100 files", "10,000 files", "1 GB"):
        step, place = f"exact: {workspace}", "one file of 1 GB" if workspace == "1 GB" else workspace
        for wait in (0, 1, 10, 100):
            when = f"{wait} ms apart" if wait else "back to back"
            found += (
                Figure(f"`x = 1` with exact undo, {place}, {when}, p50", step, f"exact, {wait} ms", "p50", "ms"),
                Figure("… with rolling checkpoints, p50", step, f"rolling, {wait} ms", "p50", "ms"),
                Figure("… with none, p50", step, f"none, {wait} ms", "p50", "ms"),
                Figure(
                    "… more with exact undo than with none",
                    step,
                    f"exact, {wait} ms: more",
                    "p50",
                    "ms",
                    targets.get((workspace, wait)),
                ),
                Figure("… page faults of a cell with exact undo", step, f"exact, {wait} ms: faults", "p50", "faults"),
                Figure("… processor time of one", step, f"exact, {wait} ms: CPU", "p50", "ms"),
            )
    return tuple(found)


FIGURES = (
    Figure(f"{_MAKE}, p50", "create", "ms", "p50", "ms", 8, times=_CREATE, chart=True),
    Figure(f"{_MAKE}, p95", "create", "ms", "p95", "ms"),
    Figure(f"{_MAKE}, 50 ms apart, p50", "create with pauses", "ms", "p50", "ms"),
    Figure(f"{_MAKE}, 50 ms apart, p95", "create with pauses", "ms", "p95", "ms"),
    Figure(f"{_LOADED}, p50", "create preloaded", "ms", "p50", "ms", 14, chart=True),
    Figure(f"{_LOADED}, p95", "create preloaded", "ms", "p95", "ms"),
    Figure(f"{_LOADED}, 50 ms apart, p50", "create preloaded with pauses", "ms", "p50", "ms"),
    Figure("a kernel, one cell, its end: page faults", "life", "faults", "p50", "faults", 2000),
    Figure("… processor time", "life", "CPU", "p50", "ms"),
    Figure("a sandboxed kernel, one cell, its end: page faults", "life, sandboxed", "faults", "p50", "faults", 2500),
    Figure("… processor time", "life, sandboxed", "CPU", "p50", "ms"),
    Figure("round trip of `x = 1`, p50", "round trip", "ms", "p50", "ms", 0.5, times=_TRIP, chart=True),
    Figure("round trip of `x = 1`, p99", "round trip", "ms", "p99", "ms", 1, chart=True),
    Figure("print cells whose output is lost", "output lost", "lost", "sum", "cells", 0),
    Figure("print cells tried", "output lost", "of", "sum", "cells"),
    Figure("streamed, lines of 80", "stream", "lines of 80", "p50", "MB/s", 100, True, chart=True),
    Figure("streamed, lines of 1,000", "stream", "lines of 1,000", "p50", "MB/s", 100, True, chart=True),
    Figure("streamed, writes of 1 MB", "stream", "writes of 1 MB", "p50", "MB/s", 100, True, chart=True),
    Figure("idle kernel, PSS, 20 alive", "idle, 20 alive", "used: kernel", "p50", "MB", 6),
    Figure("idle kernel, PSS, 100 alive", "idle, 100 alive", "used: kernel", "p50", "MB", 6, chart=True),
    Figure("… before its first cell", "idle, 100 alive", "started: kernel", "p50", "MB"),
    Figure("… its worker alone", "idle, 100 alive", "used: worker", "p50", "MB"),
    Figure("… its init alone", "idle, 100 alive", "used: init", "p50", "MB"),
    Figure("… with its share of the zygote", "idle, 100 alive", "used: all processes", "p50", "MB"),
    Figure("kernels per second, one at a time", "rate, one at a time", "per second", "p50", "1/s"),
    Figure("kernels per second, 4 at once", "rate, 4 at once", "per second", "p50", "1/s", 100, True, chart=True),
    Figure("kernels per second, 8 at once", "rate, 8 at once", "per second", "p50", "1/s", 100, True),
    Figure("1,000 kernels alive, answering", "many", "answered", "sum", "kernels", 1000, True),
    Figure("1,000 kernels alive, round trip p50", "many", "ms", "p50", "ms"),
    Figure("1,000 kernels alive, round trip p99", "many", "ms", "p99", "ms", 20),
    Figure("cold start: a program that runs one cell", "cold start", "ms", "p50", "ms", 600, chart=True),
    Figure("import, over bare Python", "import", "ms", "p50", "ms", 40, chart=True),
    Figure(
        "`exec` on the command line, daemon warm, whole process, p50", "command line", "ms", "p50", "ms", 90, times=_COMMAND
    ),
    Figure("REST: `execute` of `x = 1` on a kept connection, p50", "REST", "ms", "p50", "ms", 2.5, times={"kernelbox": 5}),
    Figure("REST: executions per second, 32 clients (KernelBox: 8)", "REST", "per second", "p50", "1/s", 1500, True),
    Figure("late at its deadline, `time.sleep`", "timeout", "sleeps", "max", "ms", 50),
    Figure("… the next cell answers after", "timeout", "sleeps: next cell", "max", "ms"),
    Figure("late at its deadline, ignores signals", "timeout", "ignores signals", "max", "ms", 3000),
    Figure("… the next cell answers after", "timeout", "ignores signals: next cell", "max", "ms"),
    Figure(f"{_SANDBOXED}, p50", "sandbox: create", "native", "p50", "ms", 10, chart=True),
    Figure(f"{_SANDBOXED}, p95", "sandbox: create", "native", "p95", "ms"),
    Figure("… more than an unsandboxed one in turns with it, p50", "sandbox: create", "more, ms", "p50", "ms", 5),
    Figure(f"{_SANDBOXED}, pandas + matplotlib, p50", "sandbox: create preloaded", "native", "p50", "ms", 16, chart=True),
    Figure(f"{_SANDBOXED}, pandas + matplotlib, p95", "sandbox: create preloaded", "native", "p95", "ms"),
    Figure("… more than an unsandboxed one in turns with it, p50", "sandbox: create preloaded", "more, ms", "p50", "ms", 5),
    Figure("sandboxed round trip of `x = 1`, p50", "sandbox: round trip", "native", "p50", "ms"),
    Figure("… more than an unsandboxed one in turns with it, p50", "sandbox: round trip", "more, %", "p50", "%", 5),
    Figure("sandboxed kernels per second, 4 at once", "sandbox: rate", "per second", "p50", "1/s", 70, True, chart=True),
    Figure("egress proxy, CONNECT", "sandbox: egress", "CONNECT: MB/s", "p50", "MB/s", 200, True, chart=True),
    Figure("egress proxy, SOCKS5", "sandbox: egress", "SOCKS5: MB/s", "p50", "MB/s", 200, True),
    Figure("egress proxy, plain HTTP", "sandbox: egress", "plain HTTP: MB/s", "p50", "MB/s", 200, True),
    Figure("… without it", "sandbox: egress", "direct: MB/s", "p50", "MB/s"),
    Figure("egress proxy, added to a connection, CONNECT", "sandbox: egress", "CONNECT: added ms", "p50", "ms", 1),
    Figure("egress proxy, added to a connection, SOCKS5", "sandbox: egress", "SOCKS5: added ms", "p50", "ms", 1),
    Figure("egress proxy, added to a request, plain HTTP", "sandbox: egress", "plain HTTP: added ms", "p50", "ms", 1),
    Figure("by Landlock: kernel to first result, p50", "sandbox: create by landlock", "landlock", "p50", "ms"),
    Figure("… more than an unsandboxed one in turns with it, p50", "sandbox: create by landlock", "more, ms", "p50", "ms", 2),
    Figure("under `srt`: the first kernel to first result, p50", "sandbox: srt", "first", "p50", "ms", 1500),
    Figure("under `srt`: the next kernels to first result, p50", "sandbox: srt", "next", "p50", "ms", 15),
    Figure("tool call from a cell, p50", "tools: call", "cell", "p50", "ms", chart=True),
    Figure("tool call from a cell, p95", "tools: call", "cell", "p95", "ms"),
    Figure(f"{_DIRECT}, p50", "tools: call", "SDK", "p50", "ms"),
    Figure("… more from a cell, p50", "tools: call", "added, ms", "p50", "ms", 1, chart=True),
    Figure("tool call from a cell, `mcp-server-time`, p50", "tools: call the clock", "cell", "p50", "ms"),
    Figure(f"{_DIRECT}, p50", "tools: call the clock", "SDK", "p50", "ms"),
    Figure("… more from a cell, p50", "tools: call the clock", "added, ms", "p50", "ms", 1),
    Figure(
        "named sessions: `execute` of `x = 1` through the daemon, p50",
        "named: functions",
        "execute",
        "p50",
        "ms",
        0.8,
        times={"kernelbox": 8},
    ),
    Figure(
        "named sessions: `get_or_create` of a new one, sandboxed, p50",
        "named: functions",
        "get_or_create",
        "p50",
        "ms",
        15,
        times={"kernelbox": 30},
    ),
    Figure("named sessions: `x = 1` in a session with exact undo, p50", "named: durability", "plain", "p50", "ms"),
    Figure("… in a durable one", "named: durability", "durable", "p50", "ms"),
    Figure("… undo of a cell that has written a file, on the disk", "named: durability", "undo, 1 files", "p50", "ms"),
    Figure("… of a cell that has written 50 files", "named: durability", "undo, 50 files", "p50", "ms"),
    Figure("named sessions: 100 adopted after SIGKILL of the daemon", "named: adoption", "s", "max", "s", 2),
    Figure("… then a first cell in each, one after the other", "named: adoption", "a cell in each, s", "max", "s"),
    Figure("approval by the last of ten rules, with its record, p50", "tools: rules", "ms", "p50", "ms", 0.2),
    Figure("1,000 tool calls, gathered; ipybox: one by one", "tools: many", "usual", "p50", "ms", times=_MANY, chart=True),
    Figure("… gathered", "tools: many", "gathered", "p50", "ms"),
    Figure("… one by one", "tools: many", "one by one", "p50", "ms"),
    *(
        figure
        for count in (10, 1000, 10_000)
        for figure in (
            Figure(
                f"undo of 3 changed files among {count:,}, to first result, p50",
                "files: undo",
                f"undo, {count} files",
                "p50",
                "ms",
                15 if count == 10_000 else None,
            ),
            Figure("… redo, p50", "files: undo", f"redo, {count} files", "p50", "ms"),
            Figure(
                "… asking the system about each file, and no more, p50",
                "files: undo",
                f"bare walk, {count} files",
                "p50",
                "ms",
            ),
        )
    ),
    Figure("the first look at 10,000 files, p50", "files: first", "ms", "p50", "ms"),
    Figure("a program beside the kernel, `exec` of `/bin/true`, p50", "programs", "exec", "p50", "ms", 2, chart=True),
    Figure("… `subprocess.run` of the same outside, in turns with it, p50", "programs", "subprocess", "p50", "ms"),
    Figure("programs per second, 100 sessions at once", "programs", "per second", "p50", "1/s", 1000, True, chart=True),
    Figure("… page faults of one", "programs", "faults", "p50", "faults"),
    Figure("… processor time of one", "programs", "CPU", "p50", "ms"),
    Figure("a cell from its last token to its result, run while it is written, p50", "eager cells", "eager", "p50", "ms"),
    Figure("… run when it is complete, p50", "eager cells", "afterwards", "p50", "ms"),
    *_exact(),
    *_checkpoints("", chart=True),
    *_checkpoints(", unsandboxed", chart=False),
    Figure("MCP server: start to the result of the first cell, p50", "mcp: server", "start", "p50", "ms", 1200, chart=True),
    Figure("MCP server: a cell of `x = 1`, p50", "mcp: server", "cell", "p50", "ms", chart=True),
    Figure("… an empty tool of the SDK's server, p50", "mcp: server", "empty tool", "p50", "ms"),
    Figure("… more for a cell, p50", "mcp: server", "added, ms", "p50", "ms", 2),
    Figure("MCP server: its tools as JSON", "mcp: server", "definitions, characters", "p50", "characters"),
    Figure(f"{_APIS}, less what the servers take", _GENERATE, "beyond the servers", "p50", "ms", times=_WRITE, chart=True),
    Figure("… the servers alone", _GENERATE, "servers alone", "p50", "ms"),
    Figure("… all of it", _GENERATE, "in turn", "p50", "ms"),
    Figure("… all of it, the five gathered", _GENERATE, "gathered", "p50", "ms"),
)

FLOOR = (
    Figure("a byte to another process and back", "floor", "ping-pong", "p50", "ms"),
    Figure("`x = 1` in IPython alone", "floor", "run_cell", "p50", "ms"),
    Figure("a fork with IPython loaded, its exit, the wait", "floor", "fork", "p50", "ms"),
    Figure("an interpreter that does nothing", "floor", "bare python", "p50", "ms"),
    Figure("skeleton: `x = 1` by way of a server with SQLite, in bare IPython", "skeleton", "round trip", "p50", "ms"),
    Figure("… the same over HTTP (FastAPI)", "skeleton", "http", "p50", "ms"),
    Figure("… over HTTP, 32 clients, time per execution", "skeleton", "http, many", "p50", "ms"),
    Figure("skeleton: a copy by `fork` that says it is there", "skeleton", "copy", "p50", "ms"),
    Figure("… a fork of the copy, up to the result of a cell", "skeleton", "way back", "p50", "ms"),
    Figure("… 8 forks of the copy, each answering", "skeleton", "branches", "p50", "ms"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, as measured.

    Attributes:
        figure: The figure.
        values: By system.
        times: How many times better than each peer cellblock is.
        met: Whether the target and all wanted ratios are reached; None where there are none.
    """

    figure: Figure
    values: dict[str, Value]
    times: dict[str, float]
    met: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        values = {system: asdict(value) for system, value in self.values.items()}
        figure = {**asdict(self.figure), "times": dict(self.figure.times)}
        return {"figure": figure, "values": values, "times": self.times, "met": self.met}


Values = dict[tuple[str, str, str], dict[str, Value]]
"""key of a figure → system → value"""


def values(figures: Sequence[Figure], results: Results, date: str) -> Values:
    """Work out what there are results for."""
    found: Values = {}
    for figure in figures:
        for system in results.get(figure.step, {}):
            if (value := figure.of(results, system, date)) is not None:
                found.setdefault(figure.key, {})[system] = value
    return found


def values_of(rows: Sequence[Mapping[str, Any]]) -> Values:
    """Return what was written down, by `Row.to_dict`."""
    found: Values = {}
    for row in rows:
        key = tuple(row["figure"][name] for name in ("step", "series", "number"))
        found[key] = {system: Value(**value) for system, value in row["values"].items()}
    return found


def merged(older: Values, newer: Values) -> Values:
    """Return the older values with the newer ones in their places."""
    return {key: older.get(key, {}) | newer.get(key, {}) for key in {**older, **newer}}


def rows(figures: Sequence[Figure], measured: Values, systems: Sequence[str]) -> list[Row]:
    """Judge all figures that there are values for."""
    found = []
    for figure in figures:
        own_and_peers = measured.get(figure.key, {})
        values = {system: own_and_peers[system] for system in systems if system in own_and_peers}
        if not values:
            continue
        own = values.get("cellblock")
        times: dict[str, float] = {}
        if own is not None:
            for system, value in values.items():
                better = figure.better(own.value, value.value)
                if system != "cellblock" and better is not None:
                    times[system] = better
        found.append(Row(figure, values, times, _met(figure, own, times)))
    return found


def _met(figure: Figure, own: Value | None, times: dict[str, float]) -> bool | None:
    if own is None or (figure.target is None and not figure.times):
        return None
    reached = figure.target is None or (own.value >= figure.target if figure.more_is_better else own.value <= figure.target)
    return reached and all(times[system] >= wanted for system, wanted in figure.times.items() if system in times)
