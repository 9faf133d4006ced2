"""The figures that tell how far a simulation is from what it simulates: one code for both worlds, signed errors."""

import math
from dataclasses import dataclass
from typing import Final

from libra.record.frames import Frame, step_times
from libra.record.reader import Run
from sim.endings import FINISHED
from sim.plots.utilisation import weight_loads

_UNITS: Final = {"output_tokens_per_s": "tokens/s", "num_train_steps": "1", "num_turns": "1"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure in both worlds, in `unit`."""

    name: str
    unit: str
    real: float
    simulated: float

    @property
    def error_percent(self) -> float:
        """Simulated over real - 1, in %; nan where one is not known or the real one is 0 and the other is not."""
        if self.real == self.simulated:
            return 0.0
        return 100.0 * (self.simulated / self.real - 1.0) if self.real else math.nan


def compared(run: Run, simulated: Run, notes: list[str]) -> list[Figure]:
    """Makespan first. A run that was cut off counts to the end of its last train step (or turn) in both worlds."""
    whole = all(each.manifest["exit_reason"] in FINISHED for each in (run, simulated))
    if not whole:
        reasons = f"{run.manifest['exit_reason']} and {simulated.manifest['exit_reason']}"
        notes.append(f"the runs ended {reasons}: makespan to the end of the last train step (or turn)")
    real, other = figures_of(run, whole=whole), figures_of(simulated, whole=whole)
    for name, what in (("num_train_steps", "train steps"), ("num_turns", "turns")):
        if real[name] != other[name]:
            notes.append(f"{real[name]:,.0f} {what} were recorded, {other[name]:,.0f} simulated")
    figures = [Figure(name, _UNITS.get(name, "s"), real[name], other.get(name, math.nan)) for name in real]
    return [figure for figure in figures if math.isfinite(figure.real) or math.isfinite(figure.simulated)]


def figures_of(run: Run, *, whole: bool) -> dict[str, float]:
    """What is compared, by name with its unit. Turn times count from ready to end, of finished turns.

    whole: the makespan is that of the run, else it ends with the last train step, or turn where nothing is trained.
    """
    turns: Frame = run.turns[run.turns["status"] == "finished"]
    steps = step_times(run)
    loads = weight_loads(run.events)
    train_steps: Frame = run.train_steps
    last_s = (train_steps if len(train_steps) else turns)["finished_s"].max()
    makespan_s = run.end_s if whole else float(last_s)
    published = train_steps["publish_finished_s"] - train_steps["publish_started_s"]
    figures = {
        "makespan_s": makespan_s,
        "step_s": steps["step_s"].mean(),
        "step_rollout_wait_s": steps["rollout_wait_s"].mean(),
        "step_train_s": steps["train_s"].mean(),
        "publish_s": published.mean(),
        "load_s": (loads["finished_s"] - loads["started_s"]).mean(),
    }
    degrees = sorted(set(turns["tp"]))
    parts = {f"_tp{tp}": turns[turns["tp"] == tp] for tp in degrees} if len(degrees) > 1 else {}
    for suffix, part in {"": turns, **parts}.items():
        latency_s = part["finished_s"] - part["ready_s"]
        figures[f"turn_latency_mean{suffix}_s"] = latency_s.mean()
        figures[f"turn_latency_p50{suffix}_s"] = latency_s.quantile(0.5)
        figures[f"turn_latency_p95{suffix}_s"] = latency_s.quantile(0.95)
    figures["ttft_mean_s"] = (turns["first_token_s"] - turns["ready_s"]).mean()
    figures["output_tokens_per_s"] = turns["output_tokens"].sum() / makespan_s if makespan_s else math.nan
    figures["num_train_steps"], figures["num_turns"] = len(train_steps), len(turns)
    return {name: float(figure) for name, figure in figures.items()}
