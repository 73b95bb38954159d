"""Makes pages of a site from documents that are written to be read in the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_GUIDES = ["sessions.md", "tools.md", "approvals.md", "sandbox.md", "egress.md", "files.md", "shell.md", "mcp-server.md", "recipes.md"]
_ALERT = re.compile(r"^> \[!(\w+)\]\n((?:>.*\n)+)", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Have the README as the first page, and the changes as another one."""
    files.append(File.generated(config, "index.md", content=_page((ROOT / "README.md").read_text())))
    files.append(File.generated(config, "changes.md", content=_page((ROOT / "CHANGELOG.md").read_text())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files that are no pages into plain text, and GitHub's alerts into admonitions."""
    folder = Path(page.file.src_uri).parent
    return _ALERT.sub(_admonition, _LINK.sub(lambda link: _link(link, folder), markdown))


def on_post_build(config: Any) -> None:
    """Write ``llms.txt``, a list of the guides for language models, and ``llms-full.txt``, all of them in one file."""
    site, pages = Path(config["site_dir"]), [ROOT / "README.md", *(ROOT / "docs" / name for name in _GUIDES)]
    listed = [f"# cellblock\n\n> {config['site_description']}.\n\n## Guides\n"]
    for path, text in ((path, path.read_text()) for path in pages):
        title = text.partition("\n")[0].removeprefix("# ")
        listed.append(f"- [{title}]({'index' if path.stem == 'README' else path.stem}.md): {_first_sentence(text)}")
        (site / f"{'index' if path.stem == 'README' else path.stem}.md").write_text(text)
    (site / "llms.txt").write_text("\n".join(listed) + "\n")
    (site / "llms-full.txt").write_text("\n\n".join(path.read_text() for path in pages))


def _first_sentence(text: str) -> str:
    paragraph = text.split("\n\n")[1].replace("\n", " ")
    return re.split(r"(?<=[.:]) ", _LINK.sub(r"\2", paragraph))[0]


def _page(text: str) -> str:
    """Return a document of the repository's top with links as they are from within docs/."""
    return _LINK.sub(lambda link: f"{link[1]}[{link[2]}]({_moved(link[3])})", text)


def _moved(target: str) -> str:
    if target.startswith(("http", "#")):
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def _link(link: re.Match[str], folder: Path) -> str:
    target = link[3]
    path = target.partition("#")[0]
    if target.startswith(("http", "#", "mailto:")) or not path:
        return link[0]
    place = Path(*[part for part in (folder / path).parts])
    outside = place.parts[:1] == ("..",) or ".." in Path(re.sub(r"[^/]+/\.\./", "", str(folder / path))).parts
    if (folder / path).as_posix() in ("../CHANGELOG.md",):
        return f"[{link[2]}](changes.md)"
    if outside or path.endswith("/"):
        return f"`{link[2].strip('`')}`" if path.endswith("/") and not outside else link[2]
    return link[0]


def _admonition(alert: re.Match[str]) -> str:
    lines = [line.removeprefix(">").removeprefix(" ") for line in alert[2].splitlines()]
    return f"!!! {alert[1].lower()}\n" + "".join(f"    {line}\n" if line else "\n" for line in lines)
