"""A run that only gives up ends with the reason."""

from executor.giving_up import GivingUp
from libra.core import events as ev
from libra.core.actions import DropTrajectory
from libra.core.ids import DropReason
from libra.core.step import Step


def dropped(number: int, why: str = "turn 0: prompt_too_long") -> Step:
    return Step(
        number, 0.0, ev.SourceExhausted(), 0, [DropTrajectory(number, DropReason.PROMPT_TOO_LONG, why)]
    )


def finished(number: int) -> Step:
    return Step(number, 0.0, ev.TrajectoryFinished(number, 1, 0.5), 0, ())


def test_it_ends_after_so_many_in_a_row_and_names_the_commonest_reason():
    watch = GivingUp(3)
    assert [watch.on_step(dropped(0)), watch.on_step(dropped(1, "other"))] == ["", ""]
    message = watch.on_step(dropped(2))
    assert message.startswith(
        "3 trajectories in a row were given up and none finished, 2 of them for prompt_too"
    )


def test_one_that_finishes_starts_the_count_anew():
    watch = GivingUp(2)
    for step in (dropped(0), finished(1), dropped(2)):
        assert watch.on_step(step) == ""
