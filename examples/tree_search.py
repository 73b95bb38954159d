"""Tree search with branches of one session: which steps clean a table best?

Each level forks the session, with the table in its memory. Every branch tries another step and is scored; the best one is
adopted, and the next level begins with its state. Nothing is loaded or computed twice.
"""

import asyncio
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from cellblock import Host, Session

LEVELS = 3
BACKGROUND = {"facecolor": "white", "edgecolor": "none", "pad": 1}
LABEL: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "bbox": BACKGROUND}

TABLE = """
import pandas as pd

table = pd.DataFrame({
    "species": [" Mallard", "mallard ", "MALLARD", "Canada goose", "canada  goose", "Gull", "Gull", None],
    "strikes": ["72", "72", "n/a", "190", "1,190", "41", "41", "-3"],
    "height":  ["120 ft", "36 m", "", "900 ft", "274 m", "50 ft", "50 ft", "unknown"],
})

KNOWN = {"Mallard", "Canada goose", "Gull"}

def score(table):
    \"\"\"Return the share of values that are as they should be, less repeated rows, and a little for each row.\"\"\"
    strikes = table.strikes.map(lambda value: not isinstance(value, str) and value >= 0)
    height = table.height.map(lambda value: not isinstance(value, str) and 0 <= value < 300)
    good = (table.species.isin(KNOWN).mean() + strikes.mean() + height.mean()) / 3
    return round(float(good - table.duplicated().mean() / 2 + len(table) / 50), 3)
"""

STEPS = {
    "drop rows without a value": "table = table.dropna()",
    "drop duplicates": "table = table.drop_duplicates()",
    "strip names": "table['species'] = table.species.str.strip()",
    "one spelling of names": "table['species'] = table.species.str.split().str.join(' ').str.capitalize()",
    "strikes as integers": "table['strikes'] = table.strikes.astype(int)",  # fails: some are no numbers
    "strikes as numbers": "table['strikes'] = pd.to_numeric(table.strikes.str.replace(',', ''), errors='coerce')",
    "heights without units": "table['height'] = pd.to_numeric(table.height.str.split().str[0], errors='coerce')",
    "heights in metres": (
        "parts = table.height.str.extract(r'(?P<value>[\\d.]+) (?P<unit>ft|m)')\n"
        "table['height'] = parts.value.astype(float) * parts.unit.map({'ft': 0.3048, 'm': 1.0})"
    ),
}


@dataclass
class Node:
    """One branch: what it tried, and how good its table is; None if the step failed."""

    step: str
    score: float | None
    chosen: bool = False


async def scored(session: Session, code: str) -> float | None:
    """Run a step in a session and return the score of its table."""
    result = await session.execute(f"{code}\nscore(table)")
    return float(result.return_value or 0) if result.ok else None


async def search(session: Session) -> list[list[Node]]:
    """Try all steps in branches and adopt the best one, as often as there are levels."""
    start = await scored(session, TABLE)
    print(f"start: {start}")
    levels = [[Node("start", start, chosen=True)]]
    for level in range(1, LEVELS + 1):
        branches = await session.fork(len(STEPS))
        scores = await asyncio.gather(*(scored(branch, code) for branch, code in zip(branches, STEPS.values(), strict=True)))
        nodes = [Node(step, score) for step, score in zip(STEPS, scores, strict=True)]
        best = max(range(len(nodes)), key=lambda index: nodes[index].score or 0)
        nodes[best].chosen = True
        await session.adopt(branches[best])
        for branch in branches:
            await branch.close()
        failed = sum(node.score is None for node in nodes)
        print(f"level {level}: {nodes[best].step} -> {nodes[best].score} ({failed} of {len(nodes)} branches failed)")
        levels.append(nodes)
    return levels


def draw(levels: list[list[Node]], path: str) -> None:
    """Draw the tree: a row for each level, with the chosen branches connected."""
    figure, axes = plt.subplots(figsize=(13, 6))
    parent = 0.0
    for depth, nodes in enumerate(levels):
        places = [index - (len(nodes) - 1) / 2 for index in range(len(nodes))]
        for place, node in zip(places, nodes, strict=True):
            color = "tab:green" if node.chosen else "tab:red" if node.score is None else "tab:gray"
            if depth:
                axes.plot([parent, place], [1 - depth, -depth], color=color, linewidth=3 if node.chosen else 1, zorder=1)
            axes.scatter(place, -depth, s=120, color=color, zorder=2)
            label = f"{node.step.replace(' ', chr(10), 1)}\n{'failed' if node.score is None else node.score}"
            axes.annotate(label, (place, -depth), (0, -10), textcoords="offset points", **LABEL)
        parent = next(place for place, node in zip(places, nodes, strict=True) if node.chosen)
    axes.set_ylim(-LEVELS - 0.6, 0.3)
    axes.axis("off")
    axes.set_title("Steps that clean a table: each row is one fork of the session")
    figure.savefig(path, dpi=120, bbox_inches="tight")


async def main(workspace: str, path: str) -> None:
    """Search, show the table that was found, and draw the tree."""
    async with Host() as host, host.session(working_dir=workspace) as session:
        levels = await search(session)
        result = await session.execute("print(table.to_string(index=False))")
        print(result.text)
    draw(levels, path)
    print(f"the tree is in {path}")


with tempfile.TemporaryDirectory() as workspace:
    asyncio.run(main(workspace, sys.argv[1] if len(sys.argv) > 1 else "tree.png"))
