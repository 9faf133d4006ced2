"""World replay: a recorded run's exogenous columns, simulated under its own configuration, against what it recorded.

Only what the world gave goes in: prompts, lengths, tool and start latencies, rewards (`RecordedSource`), and the
replicas as they reported themselves (`ReplicaReady`). All the rest, from routing to the makespan, is simulated, with
costs that `libra.cost.run_costs` fits to a record. All figures, of both worlds, are computed by the same code.

What it leaves out: replicas are there from the start and live to the end (losses and restarts are named in a note),
publications and loads take their mean, and times of the driver between a completion and the next action are none.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from libra.config.document import Document
from libra.config.resolve import Resolved, hash_tree, resolve
from libra.core.ids import NodeId, ReplicaId
from libra.cost.rollout import ReplicaCost
from libra.cost.run_costs import RunCosts, StepFit, fit_run_costs
from libra.cost.tables import RolloutCostConfig
from libra.errors import UserError
from libra.record.frames import Frame
from libra.record.reader import Run
from libra.workloads.recorded import RecordedSource
from sim.attempts import last_attempt
from sim.clock import to_ticks
from sim.config import SimConfig
from sim.driver import World
from sim.engine.base import CostTable, EngineSpec, QueueOrder
from sim.fidelity import Figure, compared
from sim.plots.utilisation import weight_loads
from sim.provenance import Provenance
from sim.simulation import simulate
from sim.world.engines import ReplicaPlan

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Validation:
    """The comparison of one run. notes: what a reader of the errors has to know, one line each."""

    run: Path
    fitted_to: Path
    costs: RunCosts
    figures: list[Figure]
    notes: list[str]

    @property
    def makespan_error_percent(self) -> float:
        """Signed, the first of the figures."""
        return self.figures[0].error_percent

    def content(self) -> dict[str, Any]:
        """Plain data for `validation.json`; what is not known is null."""
        figures = [{**asdict(figure), "error_percent": figure.error_percent} for figure in self.figures]
        return {
            "schema_version": SCHEMA_VERSION,
            "run": str(self.run),
            "fitted_to": str(self.fitted_to),
            "fitted_on_same_run": self.run.resolve() == self.fitted_to.resolve(),
            "calibration_id": calibration_id(self.costs),
            "costs": asdict(self.costs),
            "figures": [{k: _known(v) for k, v in figure.items()} for figure in figures],
            "notes": self.notes,
        }


def validate(
    directory: Path,
    fit: Path | None = None,
    out: Path | None = None,
    provenance: Provenance | None = None,
    calibrations: Sequence[Path] = (),
) -> Validation:
    """Simulate a recorded run on costs fitted to `fit` (by default to the run itself) and compare.

    Both may be run directories or the folders of real runs (their last attempts). With `out`, `validation.json` and
    the run directory `simulated` are written there. `calibrations`, files, one per TP degree, give the
    engines' steps; what remains is fitted. Raises UserError.
    """
    run = _open(directory)
    earlier = run if fit is None else _open(fit)
    costs = fitted(earlier)
    resolved = experiment_of(run)
    world = recorded_world(run, resolved, costs, earlier.directory, calibrations)
    notes = _notes(run, earlier, world)
    with TemporaryDirectory() as scratch:
        target = (Path(scratch) if out is None else out) / "simulated"
        simulate(
            resolved,
            target,
            world=world,
            provenance=replace(provenance or Provenance(), calibration_id=calibration_id(costs)),
            overwrite=(target / "manifest.json").is_file(),
            on_problem=lambda problem: notes.append(f"simulated: {problem}"),
        )
        simulated = Run.open(target)
        figures = compared(run, simulated, notes)
    validation = Validation(run.directory, earlier.directory, costs, figures, notes)
    if out is not None:
        text = json.dumps(validation.content(), indent=2, allow_nan=False) + "\n"
        partial = out / ".validation.json.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(out / "validation.json")
    return validation


def _open(directory: Path) -> Run:
    run = Run.open(last_attempt(directory))
    changed = run.verify()
    if changed:
        raise UserError(f"{changed}; give a record as it was written")
    return run


def fitted(run: Run) -> RunCosts:
    """Costs fitted to a run's record. Raises UserError that names the run."""
    try:
        return fit_run_costs(
            _columns(run.turns), _columns(weight_loads(run.events)), _columns(run.train_steps)
        )
    except UserError as error:
        raise UserError(f"{run.directory}: {error}") from error


def calibration_id(costs: RunCosts) -> str:
    """Names the coefficients: equal costs have equal names."""
    return f"calibrate-{hash_tree(asdict(costs))[:16]}"


def experiment_of(run: Run) -> Resolved:
    """The run's own configuration, its record in place of its workload, ending after as many train steps."""
    tree = dict(run.config)
    own: Mapping[str, Any] = tree.pop("executor", None) or tree.get("sim") or {}
    tree["workload"] = {"kind": "run", "path": str(run.directory.resolve())}
    tree["total_steps"] = max(1, len(run.train_steps))
    # No faults: what they did to tools is in the record, and what they did to replicas is not played again.
    tree["sim"] = {key: own[key] for key in ("metrics_period_s", "tool_timeout_s") if key in own}
    return resolve(
        Document(tree, {}, run.directory, str(run.directory / "manifest.json")), {"sim": SimConfig}
    )


def recorded_world(
    run: Run, resolved: Resolved, costs: RunCosts, source: Path, calibrations: Sequence[Path] = ()
) -> World:
    """The cluster as the record shows it, with fitted costs. `source`: of the costs. Raises UserError."""
    train = costs.train
    if resolved.experiment.training and train is None:
        raise UserError(f"{source}: has no train step to fit the trainer's costs to; give another --fit")
    return World(
        replicas=_plans(run, resolved, costs, source, calibrations),
        train_step_s=lambda num_tokens, _: 0.0 if train is None else train.step_s(num_tokens),
        publish_s=costs.publish_s,
        workload=RecordedSource(run.directory),
        seed=resolved.experiment.seed,
    )


def _plans(
    run: Run, resolved: Resolved, costs: RunCosts, source: Path, calibrations: Sequence[Path]
) -> list[ReplicaPlan]:
    source_of_steps = RolloutCostConfig(calibrations=tuple(map(str, calibrations)))
    known_steps = resolved.experiment.rollout_costs(source_of_steps) if calibrations else {}
    engine = resolved.experiment.heterogeneous_rollout.engine
    events: Frame = run.events
    ready = events[events["type"] == "ReplicaReady"].drop_duplicates("replica_id")
    plans: list[ReplicaPlan] = []
    for row in ready.sort_values("replica_id").itertuples():
        tp = int(row.tp)
        step = costs.steps.get(tp)
        if step is None:
            known = ", ".join(map(str, costs.steps))
            raise UserError(
                f"{source}: has no turns at tp {tp}, which {run.directory} has; give a --fit with the same TP "
                f"degrees (it has {known})"
            )
        kv_tokens, max_num_seqs = int(row.kv_capacity_tokens), int(row.max_num_seqs)
        num_blocks = kv_tokens // engine.block_size
        spec = EngineSpec(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(engine.max_num_batched_tokens, max_num_seqs),
            max_model_len=int(row.max_model_len),
            block_size=engine.block_size,
            num_blocks=num_blocks,
            enable_prefix_caching=engine.enable_prefix_caching,
            queue_order=QueueOrder(engine.scheduling_policy),
            watermark_blocks=int(engine.kv_watermark_fraction * num_blocks),
            keep_cache_on_load=engine.keep_prefix_cache_on_load,
        )
        cost = known_steps[tp] if calibrations else _cost(step, resolved, kv_tokens, source)
        table = CostTable.from_cost(cost, max_num_seqs)
        load_t = to_ticks(costs.load_s[tp])
        replica_id, node_id = ReplicaId(int(row.replica_id)), NodeId(int(row.node_id))
        plans.append(ReplicaPlan(replica_id, tp, node_id, spec, table, table, load_t, start_t=0))
    if not plans:
        raise UserError(f"{run.directory}: no replica became ready in this run; there is nothing to simulate")
    return plans


def _cost(step: StepFit, resolved: Resolved, kv_capacity_tokens: int, source: Path) -> ReplicaCost:
    return ReplicaCost(
        gpu=resolved.experiment.hardware_config,
        model=resolved.experiment.model_arch_config,
        tp=step.tp,
        decode_base_s=step.decode_base_s,
        decode_per_seq_s=step.decode_per_seq_s,
        decode_per_context_token_s=0.0,
        prefill_base_s=step.decode_base_s,
        prefill_per_token_s=step.prefill_per_token_s,
        prefill_per_attention_s=0.0,
        graph_host_s=0.0,
        eager_host_s=0.0,
        kv_capacity_tokens=kv_capacity_tokens,
        async_scheduling=False,  # what a turn waits for is in the fitted step
        source=f"fitted to {source}",
    )


def _notes(run: Run, earlier: Run, world: World) -> list[str]:
    notes: list[str] = []
    if earlier is run:
        notes.append("fitted on the same run: the errors are those of the model, not of a prediction")
    else:
        notes.append(f"fitted to {earlier.directory}")
    if isinstance(world.workload, RecordedSource):
        notes += world.workload.notes
    events: Frame = run.events
    gone = int(events["type"].isin(["ReplicaLost", "ReplicaStopped"]).sum())
    if gone:
        notes.append(f"replicas went down {gone} times; the simulated ones do not")
    return notes


def _columns(frame: Any) -> dict[str, Any]:
    """Arrays by name; integers that may be missing become floats."""
    return {
        name: frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
        if frame[name].dtype.kind in "iuf"
        else frame[name].to_numpy(dtype=object)
        for name in frame.columns
    }


def _known(figure: Any) -> Any:
    return None if isinstance(figure, float) and not math.isfinite(figure) else figure
