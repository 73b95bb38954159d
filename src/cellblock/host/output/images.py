"""Writes the images of a cell to files."""

from __future__ import annotations

import uuid
from pathlib import Path

from cellblock.host.files.beneath import create_file
from cellblock.host.output.spill import reason
from cellblock.model import OutputItem

_PNG = b"\x89PNG\r\n\x1a\n"


def save_images(items: list[OutputItem], directory: Path) -> tuple[list[Path], list[str]]:
    """Write the PNG images among some outputs to files.

    Args:
        items: The outputs.
        directory: An absolute path. No link on it is followed: a session may have planted one to redirect us.

    Returns:
        The paths, and a note for each image that could not be written.
    """
    paths: list[Path] = []
    notes: list[str] = []
    for item in items:
        data = item.data.get("image/png")
        if not isinstance(data, bytes) or not data.startswith(_PNG):
            continue
        path = directory / f"{uuid.uuid4().hex[:8]}.png"
        try:
            with open(create_file(str(directory), path.name), "wb") as file:
                file.write(data)
        except OSError as error:
            notes.append(f"[cellblock] an image could not be saved in {directory}: {reason(error)}")
            continue
        paths.append(path)
    return paths, notes
