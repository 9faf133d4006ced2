"""From a workload's configuration to its source, and to the files that it is read from."""

from pathlib import Path
from typing import assert_never

from libra.errors import UserError
from libra.workloads.environment import EnvironmentWorkload
from libra.workloads.parquet import RunSource, RunWorkload
from libra.workloads.recorded import RecordedSource, is_recorded_run
from libra.workloads.request_trace import RequestTraceSource, RequestTraceWorkload
from libra.workloads.synthetic import PresetWorkload, SyntheticSource
from libra.workloads.table import WorkloadSource
from libra.workloads.trajectory_facts import facts_beside
from libra.workloads.turn_table import TurnTableSource, TurnTableWorkload

WorkloadConfig = PresetWorkload | TurnTableWorkload | RequestTraceWorkload | RunWorkload | EnvironmentWorkload
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
        case EnvironmentWorkload():
            raise UserError(
                "workload.kind: environment plays real episodes, whose lengths nobody knows before they are played; "
                "run it with `python -m executor run`, then simulate its record with `kind: run` and `path`"
            )
        case _:
            assert_never(config)


def workload_files(config: WorkloadConfig, *, base_dir: Path) -> list[Path]:
    """The files whose bytes decide what the source plays; none for a preset, which is code, and for
    real episodes, which nothing here plays."""
    match config:
        case PresetWorkload() | EnvironmentWorkload():
            return []
        case TurnTableWorkload():
            path = base_dir / config.path
            named = config.trajectories_path
            facts = facts_beside(path) if named is None else base_dir / named
            return [path] if facts is None else [path, facts]
        case RequestTraceWorkload():
            return [base_dir / config.path]
        case RunWorkload():
            return sorted((base_dir / config.path).glob("**/*.parquet"))
        case _:
            assert_never(config)
