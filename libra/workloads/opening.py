"""From a workload's configuration to its source."""

from pathlib import Path
from typing import assert_never

from libra.workloads.parquet import RunSource, RunWorkload
from libra.workloads.recorded import RecordedSource, is_recorded_run
from libra.workloads.request_trace import RequestTraceSource, RequestTraceWorkload
from libra.workloads.synthetic import PresetWorkload, SyntheticSource
from libra.workloads.table import WorkloadSource
from libra.workloads.turn_table import TurnTableSource, TurnTableWorkload

WorkloadConfig = PresetWorkload | TurnTableWorkload | RequestTraceWorkload | RunWorkload
"""Every kind of workload; `kind` tells them apart."""


def open_workload(config: WorkloadConfig, *, seed: int, n_samples: int, base_dir: Path) -> WorkloadSource:
    """The source of `config`.

    seed: of the run. n_samples: trajectories of a group; request traces and earlier runs have their own
    groups. base_dir: what relative paths start from. Raises `UserError` for a file that cannot be played.
    """
    match config:
        case PresetWorkload():
            return SyntheticSource(config, seed=seed, n_samples=n_samples)
        case TurnTableWorkload():
            return TurnTableSource(config, seed=seed, n_samples=n_samples, base_dir=base_dir)
        case RequestTraceWorkload():
            return RequestTraceSource(config, base_dir=base_dir)
        case RunWorkload() if is_recorded_run(base_dir / config.path):
            return RecordedSource(base_dir / config.path)
        case RunWorkload():
            return RunSource(config, base_dir=base_dir)
        case _:
            assert_never(config)
