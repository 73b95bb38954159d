"""Each text that anybody has saved is in the workspace or in the trash, unless a cell or a person has replaced it."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path

import pytest

from cellblock import Host
from histories import Saved, history


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(2)
async def test_each_text_is_in_the_workspace_or_in_the_trash(any_host: Host, tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"{seed} {date.today()}")
    saved = Saved(tmp_path, chance)
    async with any_host.session(working_dir=saved.workspace) as session:
        await history(session, saved, chance)
