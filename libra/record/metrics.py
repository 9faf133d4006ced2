"""What a run comes to, in numbers: pure functions from derived tables to figures.

Guarantees that a figure is the same whether a run was recorded in full or as a summary: both feed the same
columns to `SummaryBuilder`, which keeps sums plus six numbers a turn and four a trajectory (medians need
them). nan means that the run has nothing to say about it (no train step, no replica of that TP degree).
"""

from array import array
from collections.abc import Mapping
from math import nan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from libra.core.ids import FailureKind
from libra.record.columns import FINISHED_PLACES, SUMMARY_FIELDS
from libra.record.figures import METRICS, TP_DEGREES

Floats = npt.NDArray[np.float64]
TAIL_FRACTION: Final = 0.9


_OF_STEPS: Final = (
    "trained_tokens_per_s",
    "train_tokens_per_s",
    "step_s",
    "step_rollout_wait_s",
    "step_publish_s",
    "step_train_s",
    "sync_s",
    "step_tail_share",
    "train_busy_share",
    "train_idle_share",
    "trained_output_tokens",
    "wasted_output_tokens",
    "wasted_share",
    "leftover_output_tokens",
)
"""What a run without a train step has nothing to say about."""


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else nan


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else nan


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else nan


def tail_share(finished_s: Floats, begin_s: float) -> float:
    """(last - t90) / (last - begin), t90 the time by which 90 % have finished; nan for none or no span."""
    if not len(finished_s):
        return nan
    ordered = np.sort(finished_s)
    last = float(ordered[-1])
    reached = float(ordered[int(np.ceil(TAIL_FRACTION * len(ordered))) - 1])
    return _share(last - reached, last - begin_s)


def publication_s(steps: Mapping[str, Any]) -> Floats:
    """For each train step, seconds between the end of the one before and its start spent on a publication.

    `steps`: columns of `train_steps`, in order. The trainer publishes between steps, so `rollout_wait_s` holds this
    time; a publication that trajectories would have been waited for anyway counts as publication.
    """
    out = np.zeros(len(steps["version"]))
    begin = np.fmax(steps["publish_started_s"], steps["finished_s"])[:-1]
    end = np.fmin(steps["publish_finished_s"][:-1], steps["started_s"][1:])
    # A step that was not published has nan bounds; fmax and fmin would take the other one for it.
    published = steps["publish_finished_s"][:-1] == steps["publish_finished_s"][:-1]
    out[1:] = np.where(published, np.maximum(end - begin, 0.0), 0.0)
    return out


class SummaryBuilder:
    """Takes the columns of derived tables, in any number of parts, and gives `METRICS`."""

    def __init__(self) -> None:
        self._queue, self._latency, self._ttft = array("d"), array("d"), array("d")
        self._engine_queue, self._engine_latency, self._engine_ttft = array("d"), array("d"), array("d")
        self._trajectory_latency = array("d")
        self._started, self._finished, self._step = array("d"), array("d"), array("q")
        self._sums = dict.fromkeys(
            ("prompt", "output", "cached", "recomputed", "preemptions", "failed", "refused", "turns"), 0
        )
        self._num_trajectories = self._num_finished = self._num_dropped = 0
        self._trained_tokens = self._dropped_tokens = 0
        self._end_s = nan
        self._stale_sum = 0.0
        self._stale_tokens = 0
        self._stale_min, self._stale_max = nan, nan
        self._steps: Mapping[str, Any] = {}
        self._replicas: Mapping[str, Any] = {}

    def add_finished_turns(self, turns: Any, ready_s: Floats) -> None:
        """Some finished turns: anything that gives arrays for `libra.record.columns.SUMMARY_FIELDS`.

        ready_s: when each could first have been submitted. The wait for the router belongs to what its trajectory
        waits for, so queue, first token and latency count from there; `engine_*` figures count from submission.
        """
        submitted = turns["submitted_s"]
        self._queue.frombytes((turns["started_s"] - ready_s).tobytes())
        self._latency.frombytes((turns["finished_s"] - ready_s).tobytes())
        self._ttft.frombytes((turns["first_token_s"] - ready_s).tobytes())
        self._engine_queue.frombytes((turns["started_s"] - submitted).tobytes())
        self._engine_latency.frombytes((turns["finished_s"] - submitted).tobytes())
        self._engine_ttft.frombytes((turns["first_token_s"] - submitted).tobytes())
        self._sums["turns"] += len(submitted)
        self._count_tokens(turns)

    def add_failed_turns(self, turns: Any) -> None:
        """Some failed attempts, with the columns of `turns` (times are not used)."""
        self._sums["failed"] += len(turns["status"])
        self._sums["refused"] += int(np.count_nonzero(turns["status"] == FailureKind.PROMPT_TOO_LONG.value))
        self._count_tokens(turns)

    def _count_tokens(self, turns: Any) -> None:
        sums = self._sums
        sums["prompt"] += int(turns["prompt_tokens"].sum())
        sums["output"] += int(turns["output_tokens"].sum())
        sums["cached"] += int(turns["cached_tokens"].sum())
        sums["recomputed"] += int(turns["recomputed_tokens"].sum())
        sums["preemptions"] += int(turns["num_preemptions"].sum())

    def add_turns(self, turns: Mapping[str, Any]) -> None:
        """Some rows of the table `turns`, finished and failed."""
        done = turns["status"] == "finished"
        self.add_finished_turns({name: turns[name][done] for name in SUMMARY_FIELDS}, turns["ready_s"][done])
        self.add_failed_turns({name: values[~done] for name, values in turns.items()})

    def add_trajectories(self, trajectories: Mapping[str, Any]) -> None:
        """Some rows of `trajectories`."""
        place = trajectories["place"]
        done = np.isin(place, list(FINISHED_PLACES))
        self._num_trajectories += len(place)
        self._num_finished += int(np.count_nonzero(done))
        dropped = place == "dropped"
        self._num_dropped += int(np.count_nonzero(dropped))
        output = trajectories["output_tokens"]
        self._dropped_tokens += int(output[dropped].sum())
        self._trained_tokens += int(output[place == "trained"].sum())
        self._started.frombytes(trajectories["started_s"][done].tobytes())
        self._finished.frombytes(trajectories["finished_s"][done].tobytes())
        latency = trajectories["finished_s"][done] - trajectories["arrival_s"][done]
        self._trajectory_latency.frombytes(latency.tobytes())
        self._step.frombytes(trajectories["train_step"][done].astype(np.int64).tobytes())
        mean = trajectories["staleness_mean"]
        known = mean == mean
        if known.any():
            tokens = output[known]
            self._stale_sum += float((mean[known] * tokens).sum())
            self._stale_tokens += int(tokens.sum())
            low, high = trajectories["staleness_min"][known].min(), trajectories["staleness_max"][known].max()
            self._stale_min = float(np.fmin(self._stale_min, low))
            self._stale_max = float(np.fmax(self._stale_max, high))

    def add_train_steps(self, steps: Mapping[str, Any]) -> None:
        """All rows of `train_steps`."""
        self._steps = steps

    def add_replicas(self, replicas: Mapping[str, Any]) -> None:
        """All rows of `replicas`."""
        self._replicas = replicas

    def result(self, end_s: float) -> dict[str, float]:
        """Name to figure for every metric, in the order of `METRICS`. end_s: when the run ended, in s."""
        self._end_s = end_s
        figures = self._train() | self._rollout() | self._turns() | self._waits()
        return {name: float(figures[name]) for name in METRICS}

    def _train(self) -> dict[str, float]:
        makespan = self._end_s
        out = {"makespan_s": makespan, "num_train_steps": 0.0}
        out |= dict.fromkeys(_OF_STEPS, nan)
        if self._steps and len(self._steps["version"]):
            steps = self._steps
            train_s = steps["finished_s"] - steps["started_s"]
            sync_s = steps["load_last_s"] - steps["publish_started_s"]
            busy = _share(float(train_s.sum()), makespan)
            out["num_train_steps"] = float(len(train_s))
            out["train_tokens_per_s"] = _share(float(steps["num_tokens"].sum()), makespan)
            out["step_s"] = _mean(np.diff(steps["finished_s"], prepend=0.0))
            publish_s = publication_s(steps)
            out["step_rollout_wait_s"] = _mean(steps["rollout_wait_s"] - publish_s)
            out["step_publish_s"] = _mean(publish_s)
            out["step_train_s"] = _mean(train_s)
            out["sync_s"] = _mean(sync_s[sync_s == sync_s])
            out["train_busy_share"], out["train_idle_share"] = busy, 1.0 - busy
            out["step_tail_share"] = self._step_tail_share()
            wasted = self._sums["output"] - self._trained_tokens
            out["trained_tokens_per_s"] = _share(self._trained_tokens, makespan)
            out["trained_output_tokens"] = self._trained_tokens
            out["wasted_output_tokens"] = wasted
            out["wasted_share"] = _share(wasted, self._sums["output"])
            out["leftover_output_tokens"] = wasted - self._dropped_tokens
        return out

    def _step_tail_share(self) -> float:
        step = np.asarray(self._step, dtype=np.int64)
        started = np.asarray(self._started, dtype=np.float64)
        finished = np.asarray(self._finished, dtype=np.float64)
        order = np.argsort(step, kind="stable")
        starts = np.flatnonzero(np.diff(step[order], prepend=step[order][:1] - 1))
        shares = [
            tail_share(finished[rows], float(started[rows].min()))
            for rows in np.split(order, starts[1:])
            if len(rows) and step[rows[0]] >= 0
        ]
        known = np.array([share for share in shares if share == share], dtype=np.float64)
        return _mean(known)

    def _rollout(self) -> dict[str, float]:
        out = {f"rollout_{part}_share": nan for part in ("busy", "paused", "idle", "down")}
        out |= {f"rollout_busy_share_tp{tp}": nan for tp in TP_DEGREES}
        finished = np.asarray(self._finished, dtype=np.float64)
        out["tail_share"] = tail_share(finished, 0.0)
        if self._replicas:
            tp = self._replicas["tp"]
            gpu_s = {part: tp * self._replicas[f"{part}_s"] for part in ("busy", "paused", "idle", "down")}
            up = gpu_s["busy"] + gpu_s["paused"] + gpu_s["idle"]
            for part in ("busy", "paused", "idle"):
                out[f"rollout_{part}_share"] = _share(float(gpu_s[part].sum()), float(up.sum()))
            out["rollout_down_share"] = _share(float(gpu_s["down"].sum()), float((up + gpu_s["down"]).sum()))
            for degree in TP_DEGREES:
                mine = tp == degree
                share = _share(float(gpu_s["busy"][mine].sum()), float(up[mine].sum()))
                out[f"rollout_busy_share_tp{degree}"] = share
        return out

    def _turns(self) -> dict[str, float]:
        sums, makespan = self._sums, self._end_s
        return {
            "output_tokens_per_s": _share(sums["output"], makespan),
            "trajectories_per_h": _share(3600.0 * self._num_finished, makespan),
            "num_turns": sums["turns"],
            "output_tokens": sums["output"],
            "dropped_output_tokens": self._dropped_tokens,
            "num_preemptions": sums["preemptions"],
            "recomputed_tokens": sums["recomputed"],
            "prefix_hit_rate": _share(sums["cached"], sums["prompt"]),
            "staleness_min": self._stale_min,
            "staleness_mean": _share(self._stale_sum, self._stale_tokens),
            "staleness_max": self._stale_max,
            "num_trajectories": self._num_trajectories,
            "num_finished": self._num_finished,
            "num_dropped": self._num_dropped,
            "num_failed_turns": sums["failed"],
            "num_refused_prompts": sums["refused"],
        }

    def _waits(self) -> dict[str, float]:
        out: dict[str, float] = {}
        for name, column, percents in (
            ("queue", self._queue, (95,)),
            ("turn_latency", self._latency, (50, 95, 99)),
            ("ttft", self._ttft, (95,)),
            ("engine_queue", self._engine_queue, (95,)),
            ("engine_latency", self._engine_latency, (50, 95, 99)),
            ("engine_ttft", self._engine_ttft, (95,)),
            ("trajectory_latency", self._trajectory_latency, (50, 95)),
        ):
            # Sorted, so that a mean does not depend on the order in which turns were added.
            values = np.sort(np.asarray(column, dtype=np.float64))
            out[f"{name}_mean_s"] = _mean(values)
            out |= {f"{name}_p{percent}_s": _percentile(values, percent) for percent in percents}
        return out
