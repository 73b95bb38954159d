"""Analyse ten thousand bird strikes in one session: state, streams, a plot, an error, a timeout. Run by `make demo`.

The part that uses cellblock is `main` and `run`; the rest is the cells, and what makes them look nice in a terminal.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from cellblock import (
    CodeExecutionChunk,
    CodeExecutionError,
    CodeExecutionResult,
    CodeExecutor,
    ExecutionTimeoutError,
    LaunchError,
    printable,
)

HERE = Path(__file__).resolve().parent
IMAGES = Path("images")
PRELOAD = ("numpy", "pandas", "matplotlib.pyplot")

LOAD = """
import pandas as pd

strikes = pd.read_csv("data/birdstrikes.csv", parse_dates=["Flight Date"])
strikes = strikes.rename(columns={"Flight Date": "date", "Wildlife Species": "species", "Cost Total $": "cost"})
print(f"{len(strikes):,} strikes from {strikes.date.min():%B %Y} to {strikes.date.max():%B %Y}")
strikes[["date", "species", "Phase of flight", "cost"]].head(4)
"""

GROUP = """
known = strikes[~strikes.species.str.startswith("Unknown")]
costs = known.groupby("species").cost.agg(strikes="size", mean="mean", total="sum")
costs = costs[costs.strikes >= 30].sort_values("mean", ascending=False)
costs.head(6).round().astype(int)
"""

BOOTSTRAP = """
import numpy as np

print("mean cost of a strike, with a 95 % interval from 20,000 resamples")
for species in costs.index[:6]:
    sample = known.cost[known.species == species].to_numpy()
    means = [np.random.choice(sample, len(sample)).mean() for _ in range(20_000)]
    low, high = np.percentile(means, [2.5, 97.5])
    print(f"{species:20} {sample.mean():>9,.0f} $   {low:>7,.0f} to {high:>7,.0f} $")
"""

PLOT = """
import matplotlib.pyplot as plt

plt.rcParams.update({"figure.dpi": 130, "axes.spines.top": False, "axes.spines.right": False})
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")

by_month = strikes.groupby(strikes.date.dt.month).size()
colors = ["#e07a3f" if month in (8, 9, 10) else "#9db4c0" for month in by_month.index]
left.bar(by_month.index, by_month, color=colors)
left.set_xticks(by_month.index, [*"JFMAMJJASOND"])
left.set_title("Most strikes happen in autumn …", loc="left", weight="bold")
left.set_ylabel("strikes, 1990 to 2002")

top = costs.head(8)[::-1]
bars = right.barh(top.index, top["mean"], color=["#9db4c0"] * (len(top) - 1) + ["#e07a3f"])
right.bar_label(bars, [f" ${cost / 1000:,.0f}k" for cost in top["mean"]])
right.set_title("… but a goose costs the most", loc="left", weight="bold")
right.set_xlabel("mean cost of a strike")
right.xaxis.set_major_formatter(lambda cost, _: f"${cost / 1000:.0f}k")
right.margins(x=0.12)
plt.show()
"""

MISTAKE = """
def mean_cost(name):
    found = strikes.cost[strikes.species == name]
    return int(found.sum()) / len(found)

print("Canada goose:", round(mean_cost("Canada goose")))
print("Canada gose:", round(mean_cost("Canada gose")))
"""

RUNAWAY = """
paid = strikes.cost.tolist()
looked = 0
while paid[looked % len(paid)] < 10_000_000:  # no strike has cost that much
    looked += 1
"""

STILL_THERE = """
print(f"{len(strikes):,} strikes are still here; the loop had looked at {looked:,}")
"""

SECOND = """
"strikes" in globals()
"""


async def main() -> None:
    """Run cells one after the other in one session, then one in a second session."""
    steps = Steps()
    steps.begin("Start the host, once per program: it loads pandas and matplotlib")
    async with CodeExecutor(working_dir=HERE, images_dir=IMAGES, preload=PRELOAD) as executor:
        steps.end()
        await run(steps, executor, "Read a CSV file", LOAD)
        await run(steps, executor, "Group it: variables stay from cell to cell", GROUP)
        await run(steps, executor, "A slow cell: its output streams", BOOTSTRAP)

        result = await run(steps, executor, "Draw a plot", PLOT)
        plot = result.images[0].replace(IMAGES / "bird-strikes.png")
        say(f"  saved as {plot}\n", GREEN)

        await run(steps, executor, "Make a mistake: it raises CodeExecutionError", MISTAKE)
        await run(steps, executor, "Run away: stopped after one second", RUNAWAY, timeout=1)
        await run(steps, executor, "Go on where we were", STILL_THERE)

        steps.begin("Start a second session: the host is warm")
        async with CodeExecutor(preload=PRELOAD) as second:
            steps.end()
            await run(steps, second, "Another session has variables of its own", SECOND)
    steps.show()


async def run(
    steps: Steps, executor: CodeExecutor, title: str, code: str, timeout: float | None = None
) -> CodeExecutionResult:
    """Run one cell, show everything a user would see of it, and return its result."""
    steps.begin(title)
    for line in code.strip().splitlines():
        say(f"  │ {line}".rstrip(), DIM)
    screen = Indented()
    try:
        async for item in executor.stream(code.strip(), timeout=timeout, chunks=True):
            if isinstance(item, CodeExecutionResult):
                result = item
            elif isinstance(item, CodeExecutionChunk):
                screen.write(item.text)
    except (CodeExecutionError, ExecutionTimeoutError) as error:
        screen.write(f"{error}\n", RED)
        result = error.result or CodeExecutionResult()
    screen.end()
    steps.end()
    return result


# -- what makes it look nice -------------------------------------------------------------------------------------------

BOLD, DIM, RED, GREEN = "1", "2", "31", "32"
COLORS = sys.stdout.isatty() and "NO_COLOR" not in os.environ


def paint(text: str, style: str) -> str:
    """Return text in a style, where this is a terminal that has some."""
    return f"\x1b[{style}m{text}\x1b[0m" if COLORS else text


def say(text: str, style: str = "") -> None:
    """Print a line, at once."""
    print(paint(text, style) if style else text, flush=True)


class Indented:
    """Prints text as it comes, set in by two columns."""

    def __init__(self) -> None:
        self._line = ""

    def write(self, text: str, style: str = "") -> None:
        """Print text, however it is cut into pieces."""
        for piece in printable(text).splitlines(keepends=True):  # colours are ours, and not for the code to choose
            line = piece.rstrip("\n")
            if line and not self._line:
                line = f"  {line}"
            print(paint(line, style) if style else line, end="\n" if piece.endswith("\n") else "", flush=True)
            self._line = "" if piece.endswith("\n") else self._line + line

    def end(self) -> None:
        """End the last line."""
        if self._line:
            print(flush=True)


class Steps:
    """Shows where we are, takes the time of each step, and makes a table of it at the end."""

    def __init__(self) -> None:
        self._times: list[tuple[str, float]] = []
        self._title, self._began = "", 0.0

    def begin(self, title: str) -> None:
        """Begin a step."""
        say(f"{len(self._times) + 1:2}  {title}", BOLD)
        self._title, self._began = title, time.perf_counter()

    def end(self) -> None:
        """End it."""
        self._times.append((self._title, time.perf_counter() - self._began))
        say("")

    def show(self) -> None:
        """Print the table."""
        width = max(len(title) for title, _ in self._times)
        longest = max(seconds for _, seconds in self._times)
        say(f"    {'How long it took':{width}}  {'ms':>8}", BOLD)
        for number, (title, seconds) in enumerate(self._times, 1):
            bar = "█" * round(20 * seconds / longest)
            say(f"{number:2}  {title:{width}}  {1000 * seconds:8,.1f}  {paint(bar, GREEN)}".rstrip())


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except LaunchError as problem:
        sys.exit(f"{problem}\n\nThe examples need pandas and matplotlib: pip install '.[examples]', or make demo")
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.")
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
