"""Speed of the whole stack: engine, controller, policies, recording.

    python -m benchmarks.scale --case step48 --reps 3 [--engine skip,reference] [--record full] [--gate]
    python -m benchmarks.scale --case steps100,gpus1008 --reps 1

CPU seconds, interleaved. `--gate` demands that the stack with the skipping engine is at least 5 times as fast as
with the reference engine on step48, the ratio of one run.
"""

import argparse
import statistics
import sys

from benchmarks.stack import STACK_CASES, Measured, run_once

MIN_RATIO = 5.0


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
    engines = ["reference", "skip"] if args.gate else args.engine.split(",")
    for name in ["step48"] if args.gate else args.case.split(","):
        seen: dict[str, list[Measured]] = {engine: [] for engine in engines}
        for _ in range(args.reps):
            for engine in engines:
                seen[engine].append(run_once(STACK_CASES[name], engine, args.record))
        for engine, runs in seen.items():
            report(name, engine, args.record, runs)
        if len({run.makespan_s for runs in seen.values() for run in runs}) > 1:
            print(f"{name}: makespans differ", file=sys.stderr)
            return 1
        if args.gate:
            pairs = zip(seen["reference"], seen["skip"], strict=True)
            ratio = statistics.median(slow.cpu_s / fast.cpu_s for slow, fast in pairs)
            print(f"{name}: skip/reference, whole stack: {ratio:.2f} (gate {MIN_RATIO})")
            return 0 if ratio >= MIN_RATIO else 1
    return 0


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
