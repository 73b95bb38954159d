"""Figures of plotly are displayed in sessions that have no nbformat."""

from __future__ import annotations

import pytest

from cellblock import Session
from cells import ok

pytestmark = pytest.mark.slow

WITHOUT = "import sys\nsys.modules['nbformat'] = None\nimport plotly.graph_objects as go\nfigure = go.Figure(go.Bar(y=[1]))\n"


@pytest.mark.parametrize("code", ["figure.show()", "figure"])
async def test_figures_need_no_nbformat(session: Session, code: str) -> None:
    result = await ok(session, WITHOUT + code)
    assert "application/vnd.plotly.v1+json" in result.outputs[-1].data
