"""The parts of a notebook's shell that libraries and magics expect, without a page or a window.

Libraries detect a notebook in three ways: by the name of the shell's class, by its ``kernel``, and by ``IPKernelApp`` in its
configuration. All three are provided: libraries then show output that works as text and MIME bundles.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from IPython.core.autocall import ExitAutocall
from IPython.core.error import UsageError
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.extensions.storemagic import StoreMagics
from traitlets import Any as AnyValue
from traitlets import Instance, default

from cellblock.worker.transformers import Transformers

_TEXT_IS_BETTER = {"rich.console"}
"""Modules that get no notebook. In one, rich writes escape sequences into plain text, and progress to widgets."""

_WINDOW = re.compile(r"(auto|notebook|widget|ipympl|nbagg|webagg|osx|macosx|(qt|gtk|tk|wx)\d?)(agg|cairo)?", re.IGNORECASE)
"""Backends of matplotlib that show a figure in a window or a page."""


class NotebookShell(InteractiveShell):
    """A shell that presents itself as a notebook's."""

    input_transformer_manager = Instance(Transformers, ())
    kernel = AnyValue()

    can_ask: Callable[[], bool] = staticmethod(lambda: False)
    """Whether `input()` gets an answer now."""

    parent_message: Callable[[], str] = staticmethod(lambda: "")
    """Returns the id of the Jupyter message that requested the running cell; empty without a Jupyter client."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.kernel = Kernel(self)
        super().__init__(*args, **kwargs)

    @property
    def parent_header(self) -> dict[str, Any]:
        """The known part of the Jupyter message that requested the running cell; empty without a Jupyter client."""
        parent: dict[str, Any] = self.kernel.get_parent()
        return parent

    def get_parent(self) -> dict[str, Any]:
        """Return `parent_header`, as Jupyter's kernel does."""
        return self.parent_header

    def debugger(self, force: bool = False) -> None:
        """Start the debugger on the last exception (``%debug``, ``%pdb``), if its commands can be entered."""
        if self.can_ask():
            super().debugger(force)
        elif not self.call_pdb:  # else the traceback has just been shown
            raise UsageError(
                "%debug needs input, which this session does not have: %tb shows the traceback again, and the frames in "
                "sys.last_value.__traceback__ have the variables"
            )

    def set_next_input(self, text: str, replace: bool = False) -> None:
        """Print the text that ``%load`` and ``%recall`` propose for the next cell, because cells cannot be edited here."""
        print(text)  # noqa: T201

    def init_history(self) -> None:
        """Use a history that is fast to write."""
        self.history_manager = _History(shell=self, parent=self)
        self.configurables.append(self.history_manager)  # type: ignore[arg-type]  # as IPython does

    @default("exiter")
    def _exiter_default(self) -> ExitAutocall:
        return _Exit(self)

    def init_user_ns(self) -> None:
        """Give the user's `__main__` the attributes of a module, which multiprocessing needs. Also called by `%reset`."""
        super().init_user_ns()
        self.user_ns.setdefault("__doc__", "Automatically created module for IPython interactive environment")
        for name in ("__package__", "__loader__", "__spec__"):
            self.user_ns.setdefault(name, None)

    def init_magics(self) -> None:
        """Add the magics that Jupyter's kernel adds."""
        super().init_magics()
        self.register_magics(_Magics, StoreMagics)

    def get_ipython(self) -> Any:
        """Return this shell, or None for a library that writes better text outside of a notebook."""
        return None if sys._getframe(1).f_globals.get("__name__") in _TEXT_IS_BETTER else self  # noqa: SLF001

    def enable_gui(self, gui: str | None = None) -> None:
        """Do nothing: there are no windows."""

    def enable_matplotlib(self, gui: str | None = None) -> tuple[Any, Any]:
        """Choose a backend of matplotlib. Backends with windows draw into the cell's output instead."""
        chosen: tuple[Any, Any] = super().enable_matplotlib("inline" if gui is None or _WINDOW.fullmatch(gui) else gui)
        return chosen

    def note_directory(self, path: Path, *, first: bool = False) -> None:
        """Add a directory to the history of ``%cd -`` and ``_dh``.

        Args:
            path: The directory, now the current one.
            first: Whether it becomes the first in the history.
        """
        history = self.history_manager
        if history is not None:
            history.dir_hist[0 if first else len(history.dir_hist) :] = [path]


class _Exit(ExitAutocall):
    """End the cell, not the kernel (`exit`, `quit`). Takes a status or a message, like `sys.exit`.

    Jupyter's argument `keep_kernel` has no effect.
    """

    def __call__(self, code: object = None, *, keep_kernel: bool = True) -> None:
        raise SystemExit(code)


class _History(HistoryManager):
    """IPython's history. Each cell sets its last inputs: as traits, which have no observers, they take 5 % of a small cell."""

    _i00 = _i = _ii = _iii = ""


@magics_class
class _Magics(Magics):
    """Magics of Jupyter's kernel that notebooks contain, without effect here."""

    @line_magic
    def autosave(self, _line: str) -> None:
        """Do nothing: there is no notebook to save."""

    @line_cell_magic
    def edit(self, _line: str, _cell: str | None = None) -> None:
        """Explain the alternative to an editor."""
        raise UsageError(
            "%edit needs an editor, which sessions do not have: write a file with %%writefile NAME, then run it with %run NAME"
        )

    ed = edit

    @line_magic
    def connect_info(self, _line: str) -> None:
        """Explain that nothing can connect to this kernel."""
        print("This kernel has no connection file: it can be reached only through its session.")  # noqa: T201


class Kernel:
    """The part of Jupyter's kernel that libraries look for at ``get_ipython().kernel``."""

    def __init__(self, shell: NotebookShell) -> None:
        self.shell = shell

    def get_parent(self, _channel: str | None = None) -> dict[str, Any]:
        """Return the known part of the message that is being handled."""
        message = self.shell.parent_message()
        return {"header": {"msg_id": message}} if message else {}

    @property
    def comm_manager(self) -> Any:
        """The manager that routes widget messages.

        Raises:
            ModuleNotFoundError: The package ``comm`` is not installed, so there are no widgets either.
        """
        from comm import get_comm_manager

        return get_comm_manager()
