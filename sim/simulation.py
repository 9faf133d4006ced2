"""One simulated run: from a resolved experiment to a run directory.

The world is built here and nowhere else: replicas with their cost tables on nodes, the trainer's step time, the
workload. `simulate` is all that a sweep's worker, the command line and a notebook call.
"""

import math
from collections.abc import Callable
from pathlib import Path

from libra import compiled
from libra.config.resolve import Resolved
from libra.config.schema import ExperimentConfig
from libra.core.ids import EndReason, NodeId, ReplicaId
from libra.cost.hardware import Gpu, Model, find_gpu, find_model
from libra.cost.sync import SyncCost
from libra.cost.train import TrainCost
from libra.cost.transitions import TransitionCost
from libra.errors import UserError
from libra.record.manifest import HostInfo, RunInfo, package_versions
from libra.record.replica_lives import ReplicaUsage
from libra.record.writer import Level, RunWriter
from libra.workloads.opening import open_workload
from sim.clock import to_seconds, to_ticks
from sim.config import SimConfig
from sim.driver import SimDriver, World
from sim.endings import ending_problem
from sim.engine.base import CostTable, EngineSpec, QueueOrder
from sim.locks import only_writer
from sim.provenance import Provenance
from sim.world.engines import ReplicaPlan, SimEngines


def simulate(
    resolved: Resolved,
    directory: Path,
    *,
    world: World | None = None,
    level: Level = "full",
    provenance: Provenance | None = None,
    on_progress: Callable[[float], None] | None = None,
    host: Callable[[], HostInfo] = HostInfo,
    overwrite: bool = False,
    keep_stalled: bool = True,
    on_problem: Callable[[str], None] | None = None,
) -> tuple[EndReason, dict[str, float]]:
    """Run the experiment and write `directory`. Returns why it ended and its summary figures.

    `world`: in place of the one that the experiment describes (`build_world`).
    Raises BusyError while another process makes the directory, PolicyError for a policy that fails (nothing stays
    of the run), and UserError for what a person can mend, before anything is written or with nothing left behind; so
    does a run that stalls (trajectories are left that no policy moves on) or has dropped everything, unless
    `keep_stalled`. `on_problem` hears in one line why a run that is kept does not count as finished
    (`sim.endings`); one that was cut off at `sim.max_sim_s` is always kept.
    """
    known = provenance or Provenance()
    experiment = resolved.experiment
    config: SimConfig = resolved.private["sim"]
    world = build_world(resolved) if world is None else world
    info = _run_info(resolved, known)
    with (
        only_writer(directory),
        RunWriter(directory, level, training=experiment.training, overwrite=overwrite) as writer,
    ):
        controller = resolved.build_controller(debug=config.debug)
        driver = SimDriver(controller, world, config, writer.append, on_progress)
        reason = driver.run()
        problem = ending_problem(
            reason, controller.view, training=experiment.training, max_sim_s=config.max_sim_s
        )
        if problem and not keep_stalled and reason is not EndReason.TIME_LIMIT:
            raise UserError(problem)
        if problem and on_problem is not None:
            on_problem(problem)
        figures = writer.close(info(reason), host(), _usage(driver.engines))
    return reason, figures


def build_world(resolved: Resolved) -> World:
    """Everything that the driver needs to know of the simulated cluster. Raises UserError."""
    experiment = resolved.experiment
    gpu, model = find_gpu(experiment.hardware_config), find_model(experiment.model_arch_config)
    sync = SyncCost(gpu, model, experiment.cost.sync, experiment.cluster.gpus_per_node)
    config: SimConfig = resolved.private["sim"]
    _check_stragglers(resolved, config)

    return World(
        replicas=_replica_plans(experiment, config, sync),
        train_step_s=_train_step_s(experiment, gpu, model),
        publish_s=sync.publish_s(experiment.train_gpus) if experiment.training else 0.0,
        workload=open_workload(
            experiment.workload,
            seed=experiment.seed,
            n_samples=experiment.n_samples,
            base_dir=resolved.workload_folder,
        ),
        seed=experiment.seed,
    )


def _train_step_s(experiment: ExperimentConfig, gpu: Gpu, model: Model) -> Callable[[int, int], float]:
    """Seconds of a train step from its tokens and trajectories; none is ever asked for without a trainer."""
    if not experiment.training:
        return lambda num_tokens, num_trajectories: 0.0
    train = TrainCost(
        gpu, model, experiment.train_layout(), experiment.cost.train, experiment.cluster.gpus_per_node
    )

    def step_s(num_tokens: int, num_trajectories: int) -> float:
        mean = num_tokens / num_trajectories if num_trajectories else 0.0
        return train.step_s(num_tokens, mean)

    return step_s


def _check_stragglers(resolved: Resolved, config: SimConfig) -> None:
    """A fault that was asked for and hits nobody would pass for a result."""
    straggler = config.faults.straggler
    num_replicas = len(resolved.experiment.heterogeneous_rollout.tp_list())
    if straggler.fraction > 0 and not straggler.num_slow(num_replicas):
        raise UserError(
            f"{resolved.document.origin(('sim', 'faults', 'straggler', 'fraction'))}: sim.faults.straggler.fraction: "
            f"{straggler.fraction:g} of {num_replicas} replicas is less than one; give at least "
            f"{math.ceil(1000 / num_replicas) / 1000:g}, or 0 for none"
        )


def _replica_plans(experiment: ExperimentConfig, config: SimConfig, sync: SyncCost) -> list[ReplicaPlan]:
    rollout = experiment.heterogeneous_rollout
    engine = rollout.engine
    made: dict[int, tuple[EngineSpec, CostTable, CostTable]] = {}
    for tp, cost in experiment.rollout_costs().items():
        num_blocks = cost.kv_capacity_tokens // engine.block_size
        spec = EngineSpec(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_model_len=rollout.max_model_len,
            block_size=engine.block_size,
            num_blocks=num_blocks,
            enable_prefix_caching=engine.enable_prefix_caching,
            queue_order=QueueOrder(engine.scheduling_policy),
            watermark_blocks=int(engine.kv_watermark_fraction * num_blocks),
            keep_cache_on_load=engine.keep_prefix_cache_on_load,
        )
        slowdown = config.faults.straggler.slowdown
        made[tp] = (
            spec,
            CostTable.from_cost(cost, engine.max_num_seqs),
            CostTable.from_cost(cost, engine.max_num_seqs, slowdown),
        )
    transition = TransitionCost(sync, experiment.cost.transition)
    nodes = _place(rollout.tp_list(), experiment.cluster.gpus_per_node)
    return [
        ReplicaPlan(
            ReplicaId(i),
            tp,
            NodeId(nodes[i]),
            *made[tp],
            load_t=to_ticks(sync.load_s(tp)),
            start_t=to_ticks(transition.start_s(tp, warm=True)),
        )
        for i, tp in enumerate(rollout.tp_list())
    ]


def _place(tp_list: list[int], gpus_per_node: int) -> list[int]:
    """Node of each replica: largest first into the first node with room, so that none is split."""
    nodes = [0] * len(tp_list)
    free: list[int] = []
    for i in sorted(range(len(tp_list)), key=lambda i: -tp_list[i]):
        node = next((n for n, room in enumerate(free) if room >= tp_list[i]), len(free))
        if node == len(free):
            free.append(gpus_per_node)
        free[node] -= tp_list[i]
        nodes[i] = node
    return nodes


def priced_by(resolved: Resolved) -> str:
    """Where the step times of each TP degree come from, in one line for the manifest."""
    costs = resolved.experiment.rollout_costs()
    return "; ".join(f"tp {tp}: {cost.source}" for tp, cost in sorted(costs.items()))


def _run_info(resolved: Resolved, known: Provenance) -> Callable[[EndReason], RunInfo]:
    tree, hashes, packages = resolved.tree(), resolved.policy_hashes(), package_versions()

    def info(reason: EndReason) -> RunInfo:
        return RunInfo(
            world="sim",
            config=tree,
            seed=resolved.experiment.seed,
            exit_reason=reason,
            commit=known.commit,
            dirty=known.dirty,
            policies=hashes,
            packages=packages,
            code_hash=known.code_hash,
            compiled=compiled.in_use,
            cell=known.cell,
            calibration_id=known.calibration_id or priced_by(resolved),
        )

    return info


def _usage(engines: SimEngines) -> dict[int, ReplicaUsage]:
    usage: dict[int, ReplicaUsage] = {}
    for replica_id, replica in engines.replicas.items():
        counters = [engine.counters for _, _, engine in replica.totals]
        usage[replica_id] = ReplicaUsage(
            busy_s=to_seconds(sum(c.busy_t for c in counters)),
            paused_s=to_seconds(sum(c.paused_t for c in counters)),
            num_steps=sum(c.num_steps for c in counters),
            up_s=sum(gone_s - ready_s for ready_s, gone_s, _ in replica.totals),
        )
    return usage
