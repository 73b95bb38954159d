"""Skips IPython's transformation of cells that it would not change. It takes a fifth of a small cell's time."""

from __future__ import annotations

import re
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

# Anything that may start a construct that IPython changes. A string that looks like one only costs time.
_SPECIAL = re.compile(
    r"""
    [%!?]                                        # magics, commands, help
    | [\r\f\v\x1c-\x1e\x85\u2028\u2029]           # ends of lines for str.splitlines, and not for Python
    | \A\s                                       # indented, or an empty line first
    | ^[^\S\n]+$                                 # a line of space: textwrap.dedent empties it, in strings, too
    | ^[^\S\n]*(?: [,;/] | >>> | \.\.\. | In\  | \[ )   # calls without parentheses; prompts
    """,
    re.MULTILINE | re.VERBOSE,
)
_DEFAULTS = TransformerManager()


class Transformers(TransformerManager):
    """IPython's transformation of cells, skipped if it would change nothing."""

    def transform_cell(self, cell: str) -> str:
        """Return IPython's transformation of a cell, which ends with a newline."""
        if self._is_default and _SPECIAL.search(cell) is None:
            return cell if cell.endswith("\n") else cell + "\n"
        transformed: Any = super().transform_cell(cell)
        return str(transformed)

    @property
    def _is_default(self) -> bool:
        """Whether no transformation was added; an added one may change anything."""
        return bool(
            self.cleanup_transforms == _DEFAULTS.cleanup_transforms
            and self.line_transforms == _DEFAULTS.line_transforms
            and self.token_transformers == _DEFAULTS.token_transformers
        )
