"""Arguments and dispatch. Each verb is a function `(args) -> exit status` in a module of this package."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libra.core.invariants import InvariantViolation
from libra.errors import PolicyError, UserError, refused_by_file_system
from libra.policies.failure import breach
from sim.cli import fidelity, inspect, running

EXPERIMENT_HELP = "experiment file (*.yaml)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status."""
    args = _parser().parse_args(argv)
    try:
        return args.verb(args)
    except UserError as error:
        if getattr(args, "traceback", False):
            traceback.print_exception(error)
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (PolicyError, InvariantViolation) as error:
        if getattr(args, "traceback", False):
            traceback.print_exception(error)
        text = breach(error) if isinstance(error, InvariantViolation) else str(error)
        print(f"error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has left. Python flushes at exit once more: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        print(f"error: {refused_by_file_system(error)}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sim",
        description="Simulate resource management for agentic RL post-training.",
        epilog="Start with: python -m sim sweep experiments/quickstart.yaml",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    run = verbs.add_parser("run", help="simulate one experiment and print its figures")
    _add_experiment(run)
    run.add_argument("--out", type=Path, help="run directory (default: runs/NAME-run)")
    _add_record(run)
    run.add_argument("--fresh", action="store_true", help="replace an existing run directory")
    run.add_argument(
        "--traceback", action="store_true", help="show the whole traceback of a policy that fails"
    )
    run.set_defaults(verb=running.run)

    sweep = verbs.add_parser("sweep", help="simulate a grid of experiments x seeds, then report")
    _add_experiment(sweep)
    sweep.add_argument("--out", type=Path, help="sweep directory (default: runs/NAME)")
    _add_record(sweep)
    sweep.add_argument("--jobs", type=int, default=0, help="processes (default: one per core)")
    sweep.add_argument("--shard", default="0/1", help="i/n: run only every n-th cell, from cell i (0-based)")
    sweep.add_argument("--fresh", action="store_true", help="replace an existing sweep directory")
    sweep.add_argument("--no-report", action="store_true", help="do not write report.html")
    sweep.set_defaults(verb=running.sweep)

    report = verbs.add_parser(
        "report", help="table, report.html, figures and timeline.json of a run or sweep"
    )
    report.add_argument(
        "directory", type=Path, help="run or sweep directory, or folder of a real run (its last attempt)"
    )
    report.add_argument("--out", type=Path, help="where to write (default: into the directory)")
    report.set_defaults(verb=inspect.report)

    _add_replay(verbs)

    compare = verbs.add_parser("compare", help="figures of two runs side by side")
    compare.add_argument("runs", type=Path, nargs=2, metavar="RUN")
    compare.set_defaults(verb=inspect.compare)

    _add_calibrate(verbs)
    _add_validate(verbs)

    check = verbs.add_parser("check", help="validate a workload trace (CSV) and describe it")
    check.add_argument("trace", type=Path)
    check.set_defaults(verb=inspect.check)

    _add_list(verbs)
    return parser


def _add_list(verbs: Any) -> None:
    listing = verbs.add_parser(
        "list",
        help="what there is: policies, presets, experiments, metrics, hardware, costs and their sources",
    )
    listing.add_argument(
        "what",
        nargs="?",
        default="all",
        choices=["all", "policies", "presets", "experiments", "metrics", "hardware", "costs"],
    )
    listing.set_defaults(verb=inspect.listing)


def _add_replay(verbs: Any) -> None:
    replay = verbs.add_parser(
        "replay", help="feed a run's events to a fresh controller; actions must be equal"
    )
    replay.add_argument(
        "directory",
        type=Path,
        nargs="+",
        help="run directories, sweeps (all their cells), or real runs (all their attempts)",
    )
    replay.set_defaults(verb=inspect.replay)


def _add_calibrate(verbs: Any) -> None:
    calibrate = verbs.add_parser(
        "calibrate",
        help="fit an engine's step times to measurements; write a stamped calibration",
        description="Fit the coefficients of one engine (GPU, model, TP degree) to grids, mixed tables and a trace, "
        "or to a log of requests. docs/fidelity.md has the forms of the files.",
    )
    add = calibrate.add_argument
    add("files", type=Path, nargs="*", metavar="FILE", help="measurements (CSV), any order")
    add("--out", type=Path, required=True, metavar="CAL.yaml", help="where to write")
    add("--gpu", help="catalogue name (`sim list hardware`)")
    add("--model", help="catalogue name, or path of a config.json")
    add("--tp", type=int, default=1, help="TP degree (default: 1)")
    add("--engine", default="vllm", help="default: vllm")
    add("--engine-version", metavar="X.Y.Z")
    add("--dtype", default="bfloat16", help="of weights and KV (default: bfloat16)")
    add("--max-num-seqs", type=int, default=128)
    add("--max-num-batched-tokens", type=int, default=2048)
    add("--max-model-len", type=int, default=40960)
    add("--block-size", type=int, default=16)
    add("--capture-tokens", type=int, default=0, help="largest CUDA graph (default: vLLM's for max-num-seqs)")
    add(
        "--no-async-scheduling",
        action="store_false",
        dest="async_scheduling",
        help="the engine schedules a step when the one before has ended",
    )
    add(
        "--kv-capacity-tokens",
        type=int,
        default=0,
        help="as reported (default: from a facts file, else computed)",
    )
    add("--concurrency", type=int, default=0, help="trajectories at once in the trace")
    add("--engine-from", type=Path, metavar="CAL.yaml", help="take what is not the model's own from there")
    add(
        "--transfer-from",
        type=Path,
        metavar="CAL.yaml",
        help="no data: that one, by the analytic ratio to --gpu",
    )
    add("--hold-out-half", action="store_true", help="fit every other request of a log; errors on the rest")
    add("--date", help="of the stamp (default: today)")
    calibrate.set_defaults(verb=fidelity.calibrate_verb)


def _add_validate(verbs: Any) -> None:
    validate = verbs.add_parser(
        "validate", help="simulate what was recorded, a run or one engine's trace; signed errors"
    )
    add = validate.add_argument
    add("run", type=Path, nargs="?", help="run directory, or folder of a real run (its last attempt)")
    add("--trace", type=Path, metavar="CSV", help="turns of one engine, in a closed loop")
    add("--requests", type=Path, metavar="CSV", help="single requests of one engine, as they came")
    add(
        "--calibration",
        type=Path,
        action="append",
        metavar="CAL.yaml",
        help="costs (a RUN: one per TP degree)",
    )
    add("--concurrency", type=int, default=0, help="trajectories at once in the trace")
    add("--deadline", type=float, metavar="S", help="when the trace was cut (s since its start)")
    for name in ("gpu", "model", "engine", "engine-version"):
        add(f"--{name}", help=f"what the trace is of: refuse a calibration of another {name}")
    add("--tp", type=int, help="likewise")
    add("--json", type=Path, metavar="OUT", help="write the figures and signed errors there")
    add("--plot", type=Path, metavar="PNG", help="measured against simulated turn latency")
    add(
        "--fit",
        type=Path,
        metavar="EARLIER_RUN",
        help="fit a RUN's costs to this run (default: to RUN itself)",
    )
    add("--out", type=Path, help="folder for validation.json and the simulated RUN")
    add("--max-error", type=float, metavar="PCT", help="exit 1 if the makespan is off by more than this (%%)")
    validate.set_defaults(verb=fidelity.validate_verb)


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", type=Path, help=EXPERIMENT_HELP)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="sets", help="override a value"
    )
    parser.add_argument(
        "--allow-mixed",
        action="store_true",
        help="let replicas be priced by different sources, and say which (cost.rollout.allow_mixed)",
    )
    parser.add_argument(
        "--show-config", action="store_true", help="print every value and where it came from, then stop"
    )


def _add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        choices=["full", "summary"],
        default="full",
        help="full: all events, for replay and plots (default); summary: figures only",
    )
