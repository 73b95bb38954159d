"""What came of making a session, as a person and a program read it."""

from __future__ import annotations

import errno

from cellblock.host.trial import Trial
from cellblock.walls.sandbox.steps import STEPS, Failure


def test_the_step_that_failed_parts_the_others() -> None:
    trial = Trial(0.5, "no", Failure("proc", errno.EPERM, "fsmount: Operation not permitted"))
    states = dict(trial.steps())
    assert not trial.ok
    assert [*states] == [*STEPS]
    assert (states["files"], states["proc"], states["confinement"]) == ("ok", "failed", "not reached")


def test_a_program_is_told_the_cause_and_the_ways_out() -> None:
    found = Trial(0.5, "no", Failure("worker", errno.ENOMEM, "Cannot allocate memory")).as_data()
    assert found["cause"] == "There is no memory left"
    assert found["ways"][0] == {"what": "see what there is", "line": "free -m"}
    assert found["said"] == "Cannot allocate memory"


def test_a_session_that_worked_has_nothing_to_explain() -> None:
    found = Trial(0.5).as_data()
    assert found["ok"]
    assert (found["cause"], found["ways"]) == ("", [])


def test_what_is_no_step_of_a_session_has_only_its_message() -> None:
    found = Trial(0.5, "no temporary directory can be written to").as_data()
    assert (found["steps"], found["error"]) == ([], "no temporary directory can be written to")
