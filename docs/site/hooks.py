"""Makes pages of a site from documents that are written to be read in the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pages import modules, requests, wire

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(docs/([^)\s]+)\)")
_ALERT = re.compile(r"^> \[!(\w+)\]\n((?:>.*\n)+)", re.MULTILINE)
_GENERATED = {"README.md": "index.md", "CHANGELOG.md": "changes.md"}
_GUIDES = (
    *("sessions", "named-sessions", "checkpoints", "recipes", "cli", "rest", "jupyter", "mcp-server"),
    *("tools", "approvals", "shell", "files", "sandbox", "egress", "containers", "migrating", "starting"),
)


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page, the changes, and the pages that are generated from the code."""
    for source, name in _GENERATED.items():
        text = _PICTURE.sub(r"![\1](\2)", (ROOT / source).read_text())
        files.append(File.generated(config, name, content=_LINK.sub(lambda link: _link(link, ""), text)))
    for name, made in (("modules", modules), ("messages", wire), ("requests", requests)):
        files.append(File.generated(config, f"reference/{name}.md", content=made()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files that are no pages into plain text, and GitHub's alerts into admonitions."""
    if page.file.src_uri not in _GENERATED.values():
        folder = os.path.join("docs", os.path.dirname(page.file.src_uri))
        markdown = _LINK.sub(lambda link: _link(link, folder), markdown)
    return _ALERT.sub(_admonition, markdown)


def on_post_build(config: Any) -> None:
    """Write ``llms.txt``, a list of the guides for language models, and ``llms-full.txt``, all of them in one file."""
    site = Path(config["site_dir"])
    texts = {"index": (ROOT / "README.md").read_text()}
    texts |= {name: (ROOT / "docs" / f"{name}.md").read_text() for name in _GUIDES}
    lines = []
    for name, text in texts.items():
        (site / f"{name}.md").write_text(text)
        lines.append(f"- [{text.partition(chr(10))[0].removeprefix('# ')}]({name}.md): {_first_sentence(text)}")
    (site / "llms.txt").write_text(
        f"# cellblock\n\n> {config['site_description']}.\n\n## Guides\n\n" + "\n".join(lines) + "\n"
    )
    (site / "llms-full.txt").write_text("\n\n".join(texts.values()))


def _link(link: re.Match[str], folder: str) -> str:
    """Return a link as it has to be in a page, or its text if it leads to what is not a page.

    Args:
        link: The link.
        folder: The folder of the document that has it; empty for the repository's top.
    """
    path, mark, place = link[2].partition("#")
    if not path or ":" in path:
        return link[0]
    target = os.path.normpath(os.path.join(folder, path))
    here = folder.removeprefix("docs").strip("/")
    if target in _GENERATED:
        return f"[{link[1]}]({os.path.relpath(_GENERATED[target], here or '.')}{mark}{place})"
    if target.startswith("docs/") and target.endswith((".md", ".png", ".svg")):
        return f"[{link[1]}]({os.path.relpath(target.removeprefix('docs/'), here or '.')}{mark}{place})"
    if (ROOT / target / "README.md").exists() and target.startswith("docs/"):
        return f"[{link[1]}]({os.path.relpath(target.removeprefix('docs/'), here or '.')}/README.md)"
    return link[1]


def _first_sentence(text: str) -> str:
    """Return the first sentence of a page, which says what it is about. Code and tables come before it in some."""
    paragraphs = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).split("\n\n")[1:]
    first = next(part for part in paragraphs if re.match(r"\w|\*\*|`", part))
    return re.split(r"(?<=[.!?]) ", _LINK.sub(r"\1", first).replace("\n", " "))[0].strip("*")


def _admonition(alert: re.Match[str]) -> str:
    lines = [line.removeprefix(">").removeprefix(" ") for line in alert[2].splitlines()]
    return f"!!! {alert[1].lower()}\n" + "".join(f"    {line}\n" if line else "\n" for line in lines)
