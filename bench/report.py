"""What a run leaves: a table, a JSON file and a chart."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.figures import FIGURES, FLOOR, Row, rows, values_of
from bench.systems import NAMES, TITLES

NOTHING: Mapping[str, Any] = {"runs": [], "figures": [], "floor": []}
"""What is written down before anything is measured."""

DEFAULT = (
    "sandboxed kernel to first result, p50",
    "sandboxed kernel to first result, pandas + matplotlib, p50",
    "sandboxed kernels per second, 4 at once",
    "checkpoint, bare, p50",
    "restore to first result, bare, p50",
    "undo to first result, bare, p50",
    "`kill -9` in a cell to the next cell's result, p50",
    "8 branches, each answering, p50",
    "named sessions: 100 adopted after SIGKILL of the daemon",
)
"""The titles of the figures of sandboxed sessions that docs/performance.md shows, in its order."""

PEERS = (
    "new kernel to first result, p50",
    "new kernel to first result, pandas + matplotlib, p50",
    "round trip of `x = 1`, p50",
    "streamed, lines of 80",
    "idle kernel, PSS, 100 alive",
    "kernels per second, 4 at once",
    "1,000 kernels alive, round trip p99",
    "cold start: a program that runs one cell",
    "late at its deadline, `time.sleep`",
    "named sessions: `execute` of `x = 1` through the daemon, p50",
    "named sessions: `get_or_create` of a new one, sandboxed, p50",
    "`exec` on the command line, daemon warm, whole process, p50",
    "REST: `execute` of `x = 1` on a kept connection, p50",
    "REST: executions per second, 32 clients (KernelBox: 8)",
    "tool call from a cell, p50",
    "1,000 tool calls, gathered; ipybox: one by one",
    "MCP server: a cell of `x = 1`, p50",
)
"""The titles of the figures that docs/performance.md compares with those of other packages, in its order."""


def machine() -> dict[str, Any]:
    """Return what a reader must know of this machine, and nothing that tells whose it is."""
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory.split()[1]) * 1024 / 1e9),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
    }


def number(value: float) -> str:
    """Return a number with as many digits as it is good for."""
    if value == 0:
        return "0"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(rows: Sequence[Row]) -> str:
    """Return the figures as a Markdown table."""
    systems = [name for name in NAMES if any(name in row.values for row in rows)]
    peers = [name for name in systems if name != "cellblock"]
    lines = [_line(["", "unit", "target", "cellblock", "rounds", "met", *(TITLES[name] for name in peers)])]
    lines.append(_line(["---", "---", *(["---:"] * (len(peers) + 4))]))
    for row in rows:
        figure = row.figure
        sign = "≥" if figure.more_is_better else "≤"
        target = "" if figure.target is None else f"{sign} {number(figure.target)}"
        own = row.values.get("cellblock")
        cells = [figure.title, figure.unit, target, number(own.value) if own else "–"]
        cells += [f"{number(own.low)} … {number(own.high)}" if own and own.low != own.high else "", _mark(row.met)]
        for name in peers:
            value = row.values.get(name)
            text = "–" if value is None else number(value.value)
            if name in row.times:
                text += f" ({number(row.times[name])}×)"
            if name in figure.times:
                text += f", wanted {number(figure.times[name])}×"
            cells.append(text)
        lines.append(_line(cells))
    return "\n".join(lines)


def short_table(rows: Sequence[Row], wanted: Sequence[str]) -> str:
    """Return some figures as a Markdown table, without targets and rounds.

    Args:
        rows: All figures.
        wanted: The titles of those to show, in order.
    """
    titles = [row.figure.title for row in rows]
    shown = [rows[titles.index(title)] for title in wanted if title in titles]
    peers = [name for name in NAMES if name != "cellblock" and any(name in row.values for row in shown)]
    lines = [
        _line(["", "unit", "cellblock", *(TITLES[name] for name in peers)]),
        _line(["---", "---", *["---:"] * (len(peers) + 1)]),
    ]
    for row in shown:
        own = row.values.get("cellblock")
        cells = [row.figure.title, row.figure.unit, f"**{number(own.value)}**" if own else "–"]
        for name in peers:
            value = row.values.get(name)
            times = f" ({number(row.times[name])}×)" if name in row.times else ""
            cells.append("–" if value is None else f"{number(value.value)}{times}")
        lines.append(_line(cells))
    return "\n".join(lines)


def floor_table(rows: Sequence[Row]) -> str:
    """Return the floor as a Markdown table."""
    lines = [_line(["the floor", "p50, ms", "rounds"]), _line(["---", "---:", "---:"])]
    for row in rows:
        value = row.values["floor"]
        lines.append(_line([row.figure.title, number(value.value), f"{number(value.low)} … {number(value.high)}"]))
    return "\n".join(lines)


def tables(data: Mapping[str, Any]) -> str:
    """Return all that `bench/results/latest.json` has, as Markdown.

    Args:
        data: What is written there.
    """
    return "\n\n".join([table(own(data)), floor_table(floor(data)), "\n".join(map(_run, data["runs"]))])


def own(data: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the figures."""
    return rows(FIGURES, values_of(data["figures"]), NAMES)


def floor(data: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the floor."""
    return rows(FLOOR, values_of(data["floor"]), ("floor",))


def _run(run: Mapping[str, Any]) -> str:
    started = f"{run['disturbed']} of {run['measurements']} measurements began while the machine was busy with something else"
    return "- " + "; ".join([f"{run['date']}, {run['part']}: {started}", *run["failures"]]) + "."


def _mark(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "**no**"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def insert(page: Path, text: str, place: str = "table") -> None:
    """Put text in its place in a Markdown page, which a comment with the place's name begins, and "end" ends."""
    before, start, rest = page.read_text().partition(f"<!-- {place} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not start or not end:
        raise ValueError(f"{page.name} has no place for this text: <!-- {place} --> and <!-- end -->")
    page.write_text(f"{before}{start}{text}\n{end}{after}")


def read(path: Path) -> dict[str, Any]:
    """Return what was written down; nothing, where nothing was."""
    if not path.exists():
        return dict(NOTHING)
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write everything down."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def draw(path: Path, where: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Draw the figures as horizontal bars on logarithmic scales."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row.figure.chart and "cellblock" in row.values]
    if not shown:
        return
    colours = dict(zip(NAMES, ("#1f6feb", "#d29922", "#8957e5", "#6e7781"), strict=True))
    columns = 3
    lines = -(-len(shown) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(15, 1.9 * lines), layout="constrained", squeeze=False)
    for axis, row in zip(axes.flat, shown, strict=False):
        systems = [name for name in reversed(NAMES) if name in row.values]
        values = [row.values[name].value for name in systems]
        bars = axis.barh([TITLES[name] for name in systems], values, color=[colours[name] for name in systems], height=0.7)
        axis.bar_label(bars, [f" {number(value)}" for value in values], fontsize=8)
        axis.set_xscale("log")
        positive = [value for value in values if value > 0] or [1.0]
        axis.set_xlim(min(positive) / 3, max(positive) * 6)
        if row.figure.target:
            axis.axvline(row.figure.target, color="#cf222e", linewidth=1, linestyle="--")
        better = "more is better" if row.figure.more_is_better else "less is better"
        axis.set_title(f"{row.figure.title.replace('`', '')} ({row.figure.unit}, {better})", fontsize=8.5, loc="left")
        axis.xaxis.set_major_formatter(lambda value, _position: number(value))
        axis.xaxis.set_minor_formatter("")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    figure.suptitle(
        f"{where['cpu']}, {where['cores']} cores, {where['system']}, Python {where['python']}; "
        "dashed: what cellblock is to reach; logarithmic scales",
        fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
