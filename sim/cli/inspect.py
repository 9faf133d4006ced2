"""The verbs that read: `report`, `replay`, `compare`, `check`, `list`."""

import argparse
import sys
from pathlib import Path
from typing import cast

from tqdm import tqdm

from libra.config.schema import CostConfig
from libra.cost.hardware import find_gpu, find_model, gpu_names, model_names
from libra.cost.stamped import stamped_values
from libra.policies.registry import BUILT_IN
from libra.record.metrics import METRICS
from sim.replay import replay as replay_run
from sim.replay import runs_below


def report(args: argparse.Namespace) -> int:
    """Write and print the report of a run or sweep."""
    write_and_print_report(args.directory, args.out)
    return 0


def write_and_print_report(directory: Path, out: Path | None) -> None:
    """Table on stdout; report.html, figures/ and timeline.json beside the data."""
    from sim.report import write_report
    from sim.results import open_result

    path = write_report(directory, out)
    print(open_result(directory).table())
    print(f"report: {path}", file=sys.stderr)


def replay(args: argparse.Namespace) -> int:
    """Replay every run named; 1 if any differs."""
    directories = [run for given in args.directory for run in runs_below(given)]
    num_events = num_actions = 0
    differing: list[str] = []
    for directory in tqdm(directories, unit="run", disable=len(directories) < 2, file=sys.stderr):
        result = replay_run(directory)
        num_events += result.num_events
        num_actions += result.num_actions
        if result.difference:
            differing.append(f"{directory}: {result.difference}")
    for line in differing:
        print(f"differs: {line}")
    print(
        f"{len(directories)} runs, {num_events:,} events, {num_actions:,} actions: "
        + (f"{len(differing)} differ" if differing else "all actions equal")
    )
    return 1 if differing else 0


def compare(args: argparse.Namespace) -> int:
    """Figures of two runs side by side."""
    from sim.results import compare_runs

    print(compare_runs(*args.runs).to_string(index=False, float_format="{:,.4g}".format))
    return 0


def check(args: argparse.Namespace) -> int:
    """Validate a trace and describe it."""
    from libra.workloads.check import check_trace

    summary = check_trace(args.trace)
    print(f"{summary.path}: a good trace of kind {summary.kind}")
    for name, figure in summary.figures.items():
        print(f"  {name:32s} {_figure_text(figure)}")
    for problem in summary.problems:
        print(f"  note: {problem}")
    return 0


def listing(args: argparse.Namespace) -> int:
    """What there is."""
    sections = {
        "policies": _policies,
        "presets": _presets,
        "experiments": _experiments,
        "metrics": _metrics,
        "hardware": _hardware,
        "costs": lambda: [
            (value.name, f"{value.value:<10g} {value.source}")
            for value in stamped_values(CostConfig(), "cost.")
        ],
    }
    for name, rows in sections.items():
        if args.what in ("all", name):
            print(name if args.what == "all" else "", end="\n" if args.what == "all" else "")
            for key, text in rows():
                print(f"  {key:32s} {text}")
    return 0


def _hardware() -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name in gpu_names():
        gpu = find_gpu(name)
        link = f"NVLink {gpu.nvlink_bytes_per_s / 1e9:g}" if gpu.nvlink_bytes_per_s else "no NVLink"
        rows.append(
            (
                f"GPU {name}",
                f"{gpu.memory_gib:g} GiB at {gpu.memory_bytes_per_s / 1e12:g} TB/s, bf16 "
                f"{gpu.peak_bf16_flops / 1e12:g} TFLOP/s; {link}, PCIe {gpu.pcie_bytes_per_s / 1e9:g}, network "
                f"{gpu.network_bytes_per_s / 1e9:g} GB/s",
            )
        )
    for name in model_names():
        model = find_model(name)
        active = f" ({model.num_active_params / 1e9:.3g} B active)" if model.num_experts else ""
        rows.append(
            (
                f"model {name}",
                f"{model.num_params / 1e9:.3g} B parameters{active}, {model.num_layers} layers, "
                f"{model.kv_bytes_per_token() / 1024:g} KiB of KV cache a token",
            )
        )
    return [*rows, ("model PATH", "any config.json, or folder with one, of Qwen2, Qwen3, Qwen3-MoE or Llama")]


def _figure_text(figure: object) -> str:
    """A number, or a mapping such as percentiles on one line."""
    if isinstance(figure, dict):
        return "  ".join(
            f"{key}: {_figure_text(value)}" for key, value in cast(dict[str, object], figure).items()
        )
    return f"{figure:,.4g}" if isinstance(figure, float) else str(figure)


def _policies() -> list[tuple[str, str]]:
    rows = [(f"{role}: {kind}", entry.summary) for (role, kind), entry in BUILT_IN.items()]
    return [*rows, ("package.module:Class", "your own, from any importable module")]


def _presets() -> list[tuple[str, str]]:
    from libra.workloads.preset import load_preset, preset_names

    return [(name, load_preset(name).description) for name in preset_names()]


def _experiments() -> list[tuple[str, str]]:
    import yaml

    rows: list[tuple[str, str]] = []
    for path in sorted(Path("experiments").glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        rows.append((str(path), str(content.get("description", "")).strip().split("\n")[0]))
    return rows or [("(none)", "no folder experiments/ here")]


def _metrics() -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, metric in METRICS.items():
        better = "" if metric.better == "neutral" else f", {metric.better} is better"
        rows.append((name, f"[{metric.unit}{better}] {metric.doc}"))
    return rows
