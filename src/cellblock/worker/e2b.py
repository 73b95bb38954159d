"""E2B's extensions of IPython: display of data frames, charts and images, and environment variables for one cell.

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
    """Convert a value to JSON data. Types that JSON lacks become a number or a string."""
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
        """Implement IPython's formatter. pandas is not loaded for this: without it, there are no data frames."""
        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(obj, pandas.DataFrame):
            return super().__call__(obj)
        return plain({str(name): values for name, values in obj.to_dict(orient="list").items()})


class ChartFormatter(BaseFormatter):
    """Shows a figure of matplotlib as its data, if the session's interpreter has e2b-charts."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = (dict, str)

    def __call__(self, obj: Any) -> Any:
        figures = sys.modules.get("matplotlib.figure")
        if figures is None or not isinstance(obj, figures.Figure):
            return super().__call__(obj)
        try:
            chart = importlib.import_module("e2b_charts").chart_figure_to_dict(obj)
        except Exception:
            return None  # it is not installed, or does not know such a chart: there is an image of it
        return plain(chart)


class DictFormatter(JSONFormatter):
    """Shows dicts and lists as JSON, too."""

    def __call__(self, obj: Any) -> Any:
        if type(obj) not in (dict, list):
            return super().__call__(obj)
        try:
            return json.loads(json.dumps(obj)), {"expanded": True}
        except (TypeError, ValueError, RecursionError):
            return None


class Surroundings:
    """The environment of a cell: the final directory of the last cell, and environment variables for this cell only.

    Attributes:
        directory: The final directory of the last cell, where the next one begins.
        armed: The name of the cell that variables are for, the digest of its code, and their values, if any.
        before: The values to restore when the cell has ended; None for a variable that was not set.
    """

    def __init__(self) -> None:
        """Start in the session's own directory, to which it returns after each cell."""
        self.directory = self._own = os.getcwd()
        self.armed: tuple[str, str, dict[str, str]] | None = None
        self.before: dict[str, str | None] = {}
        self._inside = False

    def enter(self, directory: str) -> None:
        """Start the next cell in a directory, if it can be entered."""
        try:
            os.chdir(directory)
            os.chdir(self._own)
        except OSError:
            return
        self.directory = directory
        os.environ["PWD"] = directory  # by which shells know its name, if it is a link

    def arm(self, name: str, digest: str, values: dict[str, str]) -> None:
        """Set variables when a cell begins.

        Args:
            name: A name for the cell, for `disarm`.
            digest: The SHA-256 of its code, to exclude cells in between.
            values: The variables.
        """
        self.armed = (name, digest, values)

    def disarm(self, name: str) -> None:
        """Set no variables for a cell that will not run."""
        if self.armed is not None and self.armed[0] == name:
            self.armed = None

    def begin(self, info: Any) -> None:
        """Prepare a cell, for IPython's event ``pre_run_cell``."""
        self._inside = True
        try:
            os.chdir(self.directory)
        except OSError as error:
            sys.stderr.write(f"[cellblock] cannot return to {self.directory}: {error.strerror}\n")
        if self.armed is None:
            return
        _, digest, values = self.armed
        if hashlib.sha256(info.raw_cell.encode("utf-8", "surrogatepass")).hexdigest() != digest:
            return
        self.armed = None
        self.before = {name: os.environ.get(name) for name in values}
        os.environ.update(values)

    def end(self) -> None:
        """Restore the environment, for IPython's event ``post_execute``, which can occur without a beginning."""
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
            return  # the code removed its directory


def _show_pictures(module: Any) -> None:
    """Display PIL's images when they are saved under a name, or shown: there is no screen."""
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
        cwd: The working directory. If it cannot be entered, the directory is unchanged.
    """
    # Caches and settings of programs do not belong in the workspace.
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
