"""Descriptions of the API's fields, from the docstrings of what declares them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any


def documented(kind: type) -> tuple[str, dict[str, str]]:
    """Parse the docstring of a class; return its first paragraph, and the descriptions of its attributes."""
    explained: dict[str, str] = {}
    text = ""
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("cellblock."):
            said, _, attributes = inspect.cleandoc(one.__doc__ or "").partition("\n\nAttributes:\n")
            text = said.partition("\n\n")[0]
            found = re.findall(r"^    (\w+): (.*(?:\n {8,}+.*+)*)", attributes, re.MULTILINE)
            explained |= {name: re.sub(r"\s*\n\s*", " ", meaning).replace("None", "null") for name, meaning in found}
    return text, explained


def describe_options(schema: dict[str, Any]) -> None:
    """Add the options of sessions to the schema of a field that takes them."""
    from cellblock.service.named.json_options import DECLARATIONS, option_types

    types = option_types()
    for kind, names in DECLARATIONS.items():
        explained = documented(kind)[1]
        for item in dataclasses.fields(kind):
            if item.name in names:
                default = {"default": item.default} if isinstance(item.default, bool | int | float | str) else {}
                found = {"description": explained.get(item.name, ""), **default, **types.get(item.name, {})}
                schema.setdefault("properties", {})[item.name] = found
