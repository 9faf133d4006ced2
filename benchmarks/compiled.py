"""Speed of the compiled modules against their sources, on the same machine in the same minutes.

    python -m benchmarks.compiled [--case step48] [--record full] [--reps 3] [--gate]

Needs `make compiled`. The sources run as a copy without the build, in processes of their own, in turn with the
compiled ones. CPU seconds, best of all repetitions: other work on the machine only ever adds to a time. `--gate`
demands that the whole stack is at least 1.3 times as fast, and in any case both simulate the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.stack import STACK_CASES, run_once
from libra import compiled

MIN_RATIO = 1.3
PACKAGES = ("libra", "sim", "benchmarks")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compiled", description="Compiled against source."
    )
    parser.add_argument("--case", default="step48", choices=list(STACK_CASES))
    parser.add_argument("--record", default="full", choices=["full", "summary", "none"])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--gate", action="store_true", help="exit 1 below the ratio")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_once(STACK_CASES[args.case], "skip", args.record)  # the first one also imports
        run = run_once(STACK_CASES[args.case], "skip", args.record)
        facts = [run.output_tokens, run.num_turns, run.num_steps, run.makespan_s]
        print(json.dumps({"compiled": compiled.in_use, "cpu_s": run.cpu_s, "facts": facts}))
        return 0
    if not compiled.in_use:
        parser.error(compiled.notice() or "nothing is compiled; `make compiled`")
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            shutil.copytree(compiled.ROOT / package, Path(folder) / package)
        return measure(Path(folder), args)


def measure(sources: Path, args: argparse.Namespace) -> int:
    """In turn, and more often where the ratio does not hold yet; exit status."""
    runs: dict[str, list[dict[str, Any]]] = {"sources": [], "compiled": []}
    best: dict[str, float] = {}
    ratio = 0.0
    for _ in range(4 if args.gate else 1):
        for _ in range(args.reps):
            runs["sources"].append(one(sources, args))
            runs["compiled"].append(one(compiled.ROOT, args))
        best = {kind: min(run["cpu_s"] for run in made) for kind, made in runs.items()}
        ratio = best["sources"] / best["compiled"]
        if ratio >= MIN_RATIO:
            break
    for kind, made in runs.items():
        tokens = made[0]["facts"][0]
        print(
            f"{args.case} record={args.record} {kind}: CPU s best {best[kind]:.3f}, "
            f"{tokens / best[kind] / 1e6:.2f} M tokens/CPU s"
        )
    print(f"{args.case}: compiled against sources: {ratio:.2f} times as fast (gate {MIN_RATIO})")
    for kind, made in runs.items():
        if any(run["compiled"] != (kind == "compiled") for run in made):
            print(f"benchmarks.compiled: {kind} were not what ran", file=sys.stderr)
            return 1
    if len({tuple(run["facts"]) for made in runs.values() for run in made}) > 1:
        print("benchmarks.compiled: they simulated different things", file=sys.stderr)
        return 1
    return 0 if ratio >= MIN_RATIO or not args.gate else 1


def one(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own that imports from `root`."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.compiled",
        "--one",
        "--case",
        args.case,
        "--record",
        args.record,
    ]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
