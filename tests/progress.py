"""One line of progress instead of a wall of dots, for `make test`. A test that fails is named at once and shown at the end."""

from __future__ import annotations

import sys
import time

import pytest

_LINES = 10
"""How often progress is shown where it cannot be written over, such as in a log."""


class Progress:
    """A reporter beside pytest's own, which says nothing about tests that pass."""

    def __init__(self) -> None:
        self._total = self._done = self._failed = self._shown = 0
        self._line = sys.stderr.isatty()
        self._begun = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
        """Return the outcome for pytest's summary, and no letter for it to print now."""
        if report.when == "call" or report.skipped:
            return None if hasattr(report, "wasxfail") else (report.outcome, "", report.outcome.upper())
        return ("error", "", "ERROR") if report.failed else ("", "", "")

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Take note of how many tests there are."""
        self._total = len(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Likewise, without workers."""
        self._total = len(session.items) or self._total

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Show how far it is."""
        self._done += report.when == "teardown"
        if report.failed:
            self._failed += 1
            self._write(f"FAILED {report.nodeid}\n")
        self._show()

    def pytest_sessionfinish(self) -> None:
        """End the line."""
        self._write("")

    def _show(self) -> None:
        seconds = int(time.monotonic() - self._begun)
        line = f"{self._done} of {self._total} tests in {seconds // 60}:{seconds % 60:02}, {self._failed} failed"
        if self._line:
            self._write(line)
        elif self._total and self._done * _LINES // self._total > self._shown:
            self._shown = self._done * _LINES // self._total
            self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}" if self._line else text)
        sys.stderr.flush()
