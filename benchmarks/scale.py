"""Speed of the whole stack: engine, controller, policies, recording.

    python -m benchmarks.scale --case step48 --reps 3 [--engine skip,reference] [--record full] [--gate]
    python -m benchmarks.scale --case steps100,gpus1008 --reps 1

CPU seconds, interleaved. `--gate` demands two things of step48: that the stack with the skipping engine is at least
5 times as fast as with the reference engine, and that a turn costs no more function calls than it did when the
bound was set. The ratio is of each engine's best time: other work on the machine only ever adds to a time, so the
best is the least disturbed, and repetitions are added until the ratio holds or there were four times as many. The
count is the same on every machine, and shows a slow change long before a time does.
"""

import argparse
import statistics
import sys
from types import FrameType

from benchmarks.stack import STACK_CASES, Measured, Recording, run_once
from libra import compiled

MIN_RATIO = 5.0
MAX_CALLS_PER_TURN = 255.0
"""Python and C functions called per turn, recording on; 245 when the bound was set (CPython 3.11)."""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description="Speed of the whole stack."
    )
    parser.add_argument("--case", default="step48", help=f"comma list of {', '.join(STACK_CASES)}")
    parser.add_argument("--engine", default="skip")
    parser.add_argument("--record", default="full", choices=["full", "summary", "none"])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument(
        "--gate", action="store_true", help="step48 with both engines; exit 1 below the ratio"
    )
    args = parser.parse_args()
    if args.gate and compiled.in_use:
        parser.error("--gate is for the sources (`make uncompiled`); compiled ones have benchmarks.compiled")
    if args.gate:
        return gate(args.reps, args.record)
    engines = args.engine.split(",")
    for name in args.case.split(","):
        seen = interleaved(name, engines, args.record, args.reps)
        if not same_results(name, seen):
            return 1
    return 0


def gate(reps: int, record: Recording) -> int:
    """The two gates of `--gate`; exit status."""
    name = "step48"
    seen: dict[str, list[Measured]] = {}
    ratio = 0.0
    for _ in range(4):
        more = interleaved(name, ["reference", "skip"], record, reps)
        seen = {engine: seen.get(engine, []) + runs for engine, runs in more.items()}
        if not same_results(name, seen):
            return 1
        best = {engine: min(run.cpu_s for run in runs) for engine, runs in seen.items()}
        ratio = best["reference"] / best["skip"]
        print(f"{name}: skip/reference, whole stack: {ratio:.2f} (gate {MIN_RATIO})")
        if ratio >= MIN_RATIO:
            break
    calls = calls_per_turn(name, record)
    print(f"{name}: {calls:.1f} function calls a turn (gate {MAX_CALLS_PER_TURN})")
    return 0 if ratio >= MIN_RATIO and calls <= MAX_CALLS_PER_TURN else 1


def interleaved(name: str, engines: list[str], record: Recording, reps: int) -> dict[str, list[Measured]]:
    """Run all engines in turn, `reps` times, and print a line for each."""
    seen: dict[str, list[Measured]] = {engine: [] for engine in engines}
    for _ in range(reps):
        for engine in engines:
            seen[engine].append(run_once(STACK_CASES[name], engine, record))
    for engine, runs in seen.items():
        report(name, engine, record, runs)
    return seen


def same_results(name: str, seen: dict[str, list[Measured]]) -> bool:
    """Whether all runs simulated the same; says so where not."""
    if len({run.makespan_s for runs in seen.values() for run in runs}) == 1:
        return True
    print(f"{name}: makespans differ", file=sys.stderr)
    return False


def calls_per_turn(name: str, record: Recording) -> float:
    """Function calls of one run with the skipping engine, Python's and C's, over its turns."""
    count = 0

    def on_call(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(on_call)
    try:
        run = run_once(STACK_CASES[name], "skip", record)
    finally:
        sys.setprofile(None)
    return count / run.num_turns


def report(name: str, engine: str, record: str, runs: list[Measured]) -> None:
    """One line."""
    cpu_s = sorted(run.cpu_s for run in runs)
    run = runs[0]
    best, median = cpu_s[0], statistics.median(cpu_s)
    print(
        f"{name} {engine} record={record}: CPU s best {best:.2f} median {median:.2f}; "
        f"{run.output_tokens / median / 1e6:.2f} (best {run.output_tokens / best / 1e6:.2f}) M tokens/CPU s; "
        f"{median / run.num_turns * 1e6:.1f} us/turn; {run.num_turns:,} turns; "
        f"makespan {run.makespan_s:,.1f} s = {run.makespan_s / median:,.0f} x real time; "
        f"peak RSS {max(r.rss_mib for r in runs):.0f} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
