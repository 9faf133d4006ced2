"""What a person sees while it runs: one line that is rewritten on a terminal, one line a train step elsewhere."""

import sys
from typing import Final, TextIO

from executor.world.trainer import StepLog
from libra.core import events as ev
from libra.core.ids import Place
from libra.core.step import Step
from libra.core.views import ClusterView

_PERIOD_S: Final = 1.0


class Status:
    """Prints to `out` (stderr by default). `total_steps`: of the run."""

    def __init__(self, view: ClusterView, total_steps: int, out: TextIO | None = None) -> None:
        self._view = view
        self._total_steps = total_steps
        self._out = sys.stderr if out is None else out
        self._terminal = self._out.isatty()
        self._shown_s = -_PERIOD_S
        self._window: list[tuple[float, int]] = []
        self._last: StepLog | None = None
        self._width = 0

    def on_step(self, step: Step) -> None:
        """Take in what the controller has just handled."""
        event = step.event
        if isinstance(event, ev.TurnFinished | ev.TurnFailed):
            self._window.append((step.now_s, event.output_tokens))
        if self._terminal and step.now_s - self._shown_s >= _PERIOD_S:
            self._shown_s = step.now_s
            self._rewrite(self.line(step.now_s))

    def on_train_step(self, log: StepLog) -> None:
        """A train step is done."""
        self._last = log
        if not self._terminal:
            print(self.line(log.finished_s), file=self._out, flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self._out, flush=True)

    def line(self, now_s: float) -> str:
        """The status as of `now_s`."""
        view, last = self._view, self._last
        self._window = [(t, n) for t, n in self._window if t > now_s - 10.0]
        span = min(max(now_s, 1e-9), 10.0)
        rate = sum(n for _, n in self._window) / span
        step = f"step {view.trainer.version}/{self._total_steps}"
        learnt = ""
        if last is not None:
            step_s = last.finished_s - last.started_s
            learnt = f" | reward {last.reward_mean:.3f} | train {step_s:.1f} s | staleness {last.staleness_mean:.1f}"
        places = (
            f"queue {view.count(Place.READY)}, tools {view.count(Place.IN_TOOL)}, "
            f"complete groups {len(view.complete_groups)}"
        )
        loads = " ".join(
            f"{r.replica_id}:{r.num_turns}{'' if r.status == 'ready' else '(' + r.status + ')'}"
            for r in view.replicas.values()
        )
        return f"{now_s:7.1f} s | {step}{learnt} | {rate:,.0f} tokens/s | {places} | engines {loads}"

    def close(self) -> None:
        """Leave the terminal clean."""
        self._clear()

    def _rewrite(self, text: str) -> None:
        self._out.write("\r" + text.ljust(self._width))
        self._width = len(text)
        self._out.flush()

    def _clear(self) -> None:
        if self._terminal and self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()
            self._width = 0
