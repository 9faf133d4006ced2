# pandas ships no types: what comes out of it is unknown to the type checker in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false
"""Frames of a run, for reports and notebooks: figures by TP degree, by step, by time.

Pure functions from the derived tables (as `libra.record.reader.Run` gives them) to frames; none of them is
used while a run goes on.
"""

from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd

from libra.record.columns import Columns
from libra.record.metrics import SummaryBuilder, publication_s, tail_share
from libra.record.schema import DERIVED

Frame: TypeAlias = Any
"""A pandas DataFrame. Types inferred from pandas' own source are unions of everything, so none are used."""


class Tables(Protocol):
    """The derived tables of a run, and when it ended (s)."""

    @property
    def end_s(self) -> float: ...
    @property
    def turns(self) -> Frame: ...
    @property
    def trajectories(self) -> Frame: ...
    @property
    def train_steps(self) -> Frame: ...
    @property
    def replicas(self) -> Frame: ...


def frame_columns(name: str, frame: Frame) -> Columns:
    """Columns of a derived table in the form that `SummaryBuilder` takes."""
    out: Columns = {}
    for column in DERIVED[name]:
        values: Any = frame[column.name]
        if column.python is str:
            out[column.name] = values.astype(object).to_numpy()
        elif column.python is int:
            out[column.name] = values.fillna(-1).to_numpy(dtype=np.int64)
        else:
            out[column.name] = values.to_numpy(dtype=np.float64)
    return out


def summary(tables: Tables) -> dict[str, float]:
    """Every figure of `METRICS`, from the tables alone; equals the summary made while recording."""
    builder = SummaryBuilder()
    builder.add_turns(frame_columns("turns", tables.turns))
    builder.add_trajectories(frame_columns("trajectories", tables.trajectories))
    builder.add_train_steps(frame_columns("train_steps", tables.train_steps))
    builder.add_replicas(frame_columns("replicas", tables.replicas))
    return builder.result(tables.end_s)


def usage_by_tp(tables: Tables) -> pd.DataFrame:
    """GPU time by TP degree: index tp; num_replicas, gpu_s while up, shares busy, paused, idle of it, down_gpu_s."""
    frame = tables.replicas
    tp = frame["tp"]
    gpu_s: Frame = pd.DataFrame(
        {
            "tp": tp,
            "num_replicas": 1,
            "gpu_s": tp * (frame["busy_s"] + frame["paused_s"] + frame["idle_s"]),
            "down_gpu_s": tp * frame["down_s"],
            **{f"{part}_share": tp * frame[f"{part}_s"] for part in ("busy", "paused", "idle")},
        }
    )
    out = gpu_s.groupby("tp").sum()
    shares = [name for name in out.columns if name.endswith("_share")]
    out[shares] = out[shares].div(out["gpu_s"], axis=0)
    return out


def turns_by_tp(tables: Tables) -> pd.DataFrame:
    """Finished turns by TP degree: count, output tokens, latency p50/p95/p99, queueing and TTFT means (s).

    The times count from `ready_s`, like the figures of the same names.
    """
    done = tables.turns[tables.turns["status"] == "finished"]
    latency = done["finished_s"] - done["ready_s"]
    rows = {
        "num_turns": done.groupby("tp").size(),
        "output_tokens": done.groupby("tp")["output_tokens"].sum(),
        "queue_mean_s": (done["started_s"] - done["ready_s"]).groupby(done["tp"]).mean(),
        "ttft_mean_s": (done["first_token_s"] - done["ready_s"]).groupby(done["tp"]).mean(),
    }
    for percent in (50, 95, 99):
        rows[f"latency_p{percent}_s"] = latency.groupby(done["tp"]).quantile(percent / 100)
    return pd.DataFrame(rows)


def step_times(tables: Tables) -> pd.DataFrame:
    """Per optimizer step, index version: step_s split into rollout_wait_s (for trajectories alone), publish_s (of
    the step before) and train_s; sync_s beside them.

    tail_share is that of the trajectories which the step consumed (nan where it had none).
    """
    steps = tables.train_steps.set_index("version")
    publish_s = publication_s(frame_columns("train_steps", tables.train_steps))
    trajectories = tables.trajectories
    tails: dict[int, float] = {}
    consumed = trajectories[trajectories["train_step"].notna()]
    for version, group in consumed.groupby("train_step"):
        finished = group["finished_s"].to_numpy(dtype=np.float64)
        tails[int(version)] = tail_share(finished, float(group["started_s"].min()))
    return pd.DataFrame(
        {
            "step_s": steps["finished_s"].diff().fillna(steps["finished_s"]),
            "rollout_wait_s": steps["rollout_wait_s"] - publish_s,
            "publish_s": publish_s,
            "train_s": steps["finished_s"] - steps["started_s"],
            "sync_s": steps["load_last_s"] - steps["publish_started_s"],
            "num_tokens": steps["num_tokens"],
            "staleness_mean": steps["staleness_mean"],
            "staleness_max": steps["staleness_max"],
            "tail_share": pd.Series(tails, dtype="float64").reindex(steps.index),
        }
    )


def finished_over_time(tables: Tables) -> pd.DataFrame:
    """Cumulative share of trajectories that have finished: columns t_s (increasing), finished_share."""
    times = np.sort(tables.trajectories["finished_s"].dropna().to_numpy(dtype=np.float64))
    share = np.arange(1, len(times) + 1) / max(1, len(tables.trajectories))
    return pd.DataFrame({"t_s": times, "finished_share": share})
