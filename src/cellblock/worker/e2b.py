"""E2B's extensions of IPython: display of data frames, charts and pictures, and environment variables for one cell.

Only sessions that are contexts of E2B's clients load it (`fronts.e2b`).
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from typing import Any

from IPython.core.display_functions import display
from IPython.core.formatters import BaseFormatter, JSONFormatter
from IPython.core.getipython import get_ipython
from traitlets import ObjectName, Unicode

from cellblock.worker.on_import import on_import


def plain(value: Any) -> Any:
    """Return a value as JSON data; what JSON does not have becomes a number or a string."""
    return json.loads(json.dumps(value, default=_as_text, skipkeys=True))


def _as_text(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else str(value)


class DataFormatter(BaseFormatter):
    """Shows a data frame as a list of values for each column."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        """See IPython. pandas is not loaded for this: without it, there are no data frames."""
        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(obj, pandas.DataFrame):
            return super().__call__(obj)
        return plain({str(name): values for name, values in obj.to_dict(orient="list").items()})


class ChartFormatter(BaseFormatter):
    """Shows a figure of matplotlib as the data in it, if the session's interpreter has e2b-charts."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        """See IPython."""
        figures = sys.modules.get("matplotlib.figure")
        if figures is None or not isinstance(obj, figures.Figure):
            return super().__call__(obj)
        try:
            chart = importlib.import_module("e2b_charts").chart_figure_to_dict(obj)
        except Exception:
            return None  # it is not installed, or does not know such a chart: there is a picture of it
        return plain(chart)


class DictFormatter(JSONFormatter):
    """Shows dicts and lists as JSON, too."""

    def __call__(self, obj: Any) -> Any:
        """See IPython."""
        if type(obj) not in (dict, list):
            return super().__call__(obj)
        try:
            return json.loads(json.dumps(obj)), {"expanded": True}
        except (TypeError, ValueError, RecursionError):
            return None


class Surroundings:
    """The environment of a cell: the directory in which the last one ended, and environment variables for it alone.

    Attributes:
        directory: Where the last cell was at its end, and the next one begins.
        armed: The name of the cell that variables are for, the digest of its code, and their values; None if there is none.
        before: The values to restore when the cell has ended; None for a variable that was not set.
    """

    def __init__(self) -> None:
        """Begin in the session's own directory, to which it returns after each cell."""
        self.directory = self._own = os.getcwd()
        self.armed: tuple[str, str, dict[str, str]] | None = None
        self.before: dict[str, str | None] = {}
        self._inside = False

    def enter(self, directory: str) -> None:
        """Begin the next cell in a directory, if it can be entered."""
        try:
            os.chdir(directory)
            os.chdir(self._own)
        except OSError:
            return
        self.directory = directory
        os.environ["PWD"] = directory  # by which shells know it by this name, if it is a link

    def arm(self, name: str, digest: str, values: dict[str, str]) -> None:
        """Set variables when a cell begins.

        Args:
            name: A name for the cell, for `disarm`.
            digest: The SHA-256 of its code: a cell that comes between is not meant.
            values: The variables.
        """
        self.armed = (name, digest, values)

    def disarm(self, name: str) -> None:
        """Set no variables for a cell, which will not come."""
        if self.armed is not None and self.armed[0] == name:
            self.armed = None

    def begin(self, info: Any) -> None:
        """Prepare a cell: see IPython's event ``pre_run_cell``."""
        self._inside = True
        try:
            os.chdir(self.directory)
        except OSError as error:
            sys.stderr.write(f"[cellblock] cannot go back to {self.directory}: {error.strerror}\n")
        if self.armed is None:
            return
        _, digest, values = self.armed
        if hashlib.sha256(info.raw_cell.encode("utf-8", "surrogatepass")).hexdigest() != digest:
            return
        self.armed = None
        self.before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)

    def end(self) -> None:
        """Put back what was there before: see IPython's event ``post_execute``, which comes without a beginning, too."""
        if not self._inside:
            return
        self._inside = False
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.before = {}
        try:
            self.directory = os.getcwd()
            os.chdir(self._own)
        except OSError:
            return  # the code has removed the directory in which it was


def _show_pictures(module: Any) -> None:
    """Display PIL's pictures when they are saved under a name, or shown: there is no screen."""
    picture, save = module.Image, module.Image.save

    def saving(self: Any, fp: Any, *args: Any, **options: Any) -> None:
        if isinstance(fp, (str, os.PathLike)):
            display(self)
        save(self, fp, *args, **options)

    picture.save = saving
    picture.show = lambda self, *_, **__: display(self)


def prepare(home: str, cwd: str) -> None:
    """Prepare a fresh kernel.

    Args:
        home: The home directory.
        cwd: The directory to work in. If it cannot be entered, the kernel stays where it is.
    """
    # Caches and settings of programs do not belong among the files of the workspace.
    for name, place in (("XDG_CACHE_HOME", "cache"), ("XDG_CONFIG_HOME", "config")):
        os.environ.setdefault(name, os.path.expanduser(f"~/.{place}"))
    shell: Any = get_ipython()
    shell.db.root  # noqa: B018  # IPython opens it when it is first used, in the home directory of that time
    os.environ["HOME"] = home
    formatters = shell.display_formatter.formatters
    for name, kind in (("e2b/data", DataFormatter), ("e2b/chart", ChartFormatter), ("application/json", DictFormatter)):
        formatters[name] = kind(parent=shell.display_formatter)
    shell.e2b = surroundings = Surroundings()
    shell.events.register("pre_run_cell", surroundings.begin)
    shell.events.register("post_execute", surroundings.end)
    on_import("PIL.Image", _show_pictures)
    for place in (home, cwd):
        surroundings.enter(place)
