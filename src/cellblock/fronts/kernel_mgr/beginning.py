"""The code that a `KernelClient` runs first in a kernel. It leaves no names behind."""

from __future__ import annotations

from pathlib import Path

_PLAIN = """\
def _cellblock_begin():
    import os
    get_ipython().run_line_magic("colors", "nocolor")
    for name in ("CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR"):
        os.environ.pop(name, None)
    os.environ.update(TERM="dumb", NO_COLOR="1")
_cellblock_begin()
del _cellblock_begin
"""

_RETURNING = """\
def _cellblock_return(directory):
    import os
    def come_back(result=None):
        try:
            here = os.getcwd()
        except FileNotFoundError:  # the code has removed the directory that it was in
            here = None
        if here != directory:
            os.chdir(directory)
            print(f"[cellblock] cwd reset to {{directory}}")
    os.chdir(directory)
    get_ipython().events.register("post_run_cell", come_back)
_cellblock_return({directory!r})
del _cellblock_return
"""


def beginning(working_dir: Path | None, *, plain: bool) -> str:
    """Return the code, which works in every IPython kernel, also in kernels of other gateways.

    Args:
        working_dir: The directory in which the kernel starts, and to which it returns after each cell; None to stay.
        plain: Whether the kernel shows no colours by default, as cellblock's does.
    """
    return ("" if plain else _PLAIN) + ("" if working_dir is None else _RETURNING.format(directory=str(working_dir)))
