"""Why a run that ended does not count as finished, in one line for a person."""

from collections.abc import Iterable
from pathlib import Path

from libra.core.ids import LIVE_PLACES, EndReason, Place
from libra.core.views import ClusterView
from libra.record.reader import Run

FINISHED: frozenset[str] = frozenset({EndReason.COMPLETED.value, EndReason.STEPS_DONE.value})
"""`exit_reason` of runs that came to the end that their experiment asks for."""


def ending_problem(reason: EndReason, view: ClusterView, *, training: bool, max_sim_s: float) -> str:
    """Empty if the run finished and has something to show, else what is wrong and the mend.

    A run that was cut off (`time_limit`) has figures, but of another amount of work than its rivals' runs; one in
    which everything was dropped has none.
    """
    if reason is EndReason.STALLED:
        return stall_message(view)
    if reason is EndReason.TIME_LIMIT:
        left = f" ({_places(view)})" if _places(view) else ""
        return (
            f"the run was cut off at sim.max_sim_s = {max_sim_s:g} s of simulated time with work left{left}: "
            "its figures are of an unfinished run; raise sim.max_sim_s, or make the run smaller"
        )
    if not view.count(Place.TRAINED):  # without a trainer what finishes goes there at once
        what = "was trained on" if training else "finished"
        return (
            f"no trajectory {what}: {view.count(Place.DROPPED)} were dropped, so there is nothing to compare; "
            "`drop_reason` in the table trajectories of a full recording says why"
        )
    return ""


def cells_cut_off(cells: Iterable[Path]) -> list[str]:
    """Names of those run directories that exist and did not come to their end (`time_limit`)."""
    return [
        path.name
        for path in cells
        if path.exists() and Run.open(path).manifest["exit_reason"] not in FINISHED
    ]


def cut_off_message(names: list[str], num_cells: int) -> str:
    """What a person is told of a sweep with such cells."""
    return (
        f"{len(names)} of {num_cells} cells were cut off at sim.max_sim_s and are in no mean "
        f"(the first: {names[0]}); raise sim.max_sim_s"
    )


def stall_message(view: ClusterView) -> str:
    """Where the trajectories of a stalled run stand."""
    return f"the run stalled: nothing is under way and no policy moves on what is left ({_places(view)})"


def _places(view: ClusterView) -> str:
    return ", ".join(f"{view.count(place)} {place}" for place in LIVE_PLACES if view.count(place))
