"""Speed of the engine implementations, as ratios taken in one run.

    python -m benchmarks.engine --case step48 --impl reference,skip --reps 5 [--json out.json] [--gate]

Implementations are interleaved within a repetition and timed in CPU seconds, for the machine may be shared.
Counts and the hash of all completion times are deterministic and printed apart. Exit status 1 if the
implementations do not agree to the tick, or with `--gate` if skip is less than 8 times as fast as reference or
takes more than 4.0 SimPy events a turn (tool returns included).
"""

import argparse
import gc
import hashlib
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import CASES, SIM_SECOND, Case, CaseRun
from libra import compiled

MIN_RATIO = 8.0
MAX_EVENTS_PER_TURN = 4.0


def run_once(case: Case, kind: str) -> tuple[float, dict[str, Any]]:
    """CPU seconds of the simulation alone, and what is deterministic about it."""
    run = CaseRun(case, kind)
    gc.collect()
    begin = time.process_time()
    run.run()
    cpu_s = time.process_time() - begin
    unfinished = sum(1 for end_t in run.end_t if end_t < 0)
    facts = {
        **run.totals(),
        "num_turns": case.num_turns,
        "num_unfinished": unfinished,
        "num_events": run.num_events,
        "events_per_turn": round(run.num_events / case.num_turns, 3),
        "makespan_s": round(max(run.end_t) / SIM_SECOND, 3),
        "sha256": hashlib.sha256(np.array(run.end_t, dtype=np.int64).tobytes()).hexdigest(),
    }
    return cpu_s, facts


def measure(case: Case, kinds: list[str], reps: int) -> dict[str, dict[str, Any]]:
    """All implementations, `reps` times in turn."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    facts: dict[str, dict[str, Any]] = {}
    for _ in range(reps):
        for kind in kinds:
            cpu_s, seen = run_once(case, kind)
            seconds[kind].append(cpu_s)
            if facts.setdefault(kind, seen) != seen:
                sys.exit(f"benchmarks.engine: two runs of {kind} on {case.name} differ")
    for kind in kinds:
        best, median = min(seconds[kind]), statistics.median(seconds[kind])
        facts[kind]["cpu_s"] = {"best": round(best, 4), "median": round(median, 4)}
        facts[kind]["us_per_turn"] = round(median / case.num_turns * 1e6, 2)
        facts[kind]["m_tokens_per_cpu_s"] = {
            "best": round(facts[kind]["output_tokens"] / best / 1e6, 2),
            "median": round(facts[kind]["output_tokens"] / median / 1e6, 2),
        }
    if "reference" in kinds:
        for kind in kinds:
            ratios = [slow / fast for slow, fast in zip(seconds["reference"], seconds[kind], strict=True)]
            facts[kind]["ratio_to_reference"] = {
                "best": round(min(seconds["reference"]) / min(seconds[kind]), 2),
                "median": round(statistics.median(ratios), 2),
            }
    return facts


def report(case: Case, facts: dict[str, dict[str, Any]]) -> None:
    """The deterministic part first, then the times."""
    names = [
        "num_turns",
        "num_unfinished",
        "makespan_s",
        "num_steps",
        "num_wakes",
        "num_events",
        "events_per_turn",
        "output_tokens",
        "prefill_tokens",
        "cached_tokens",
        "num_preemptions",
        "sha256",
    ]
    print(f"{case.name}: deterministic")
    for name in names:
        values = [f"{str(seen[name])[:16]:>18}" for seen in facts.values()]
        print(f"  {name:<18}" + "".join(values))
    print(f"{case.name}: CPU time ({', '.join(facts)})")
    for name in ("cpu_s", "m_tokens_per_cpu_s", "us_per_turn", "ratio_to_reference"):
        print(f"  {name:<20}" + "  ".join(str(seen.get(name, "-")) for seen in facts.values()))
    print(f"  peak RSS of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def failures(facts: dict[str, dict[str, Any]], gate: bool) -> list[str]:
    """What does not hold."""
    wrong: list[str] = []
    if len({seen["sha256"] for seen in facts.values()}) > 1:
        wrong.append("completion times differ")
    if any(seen["num_unfinished"] for seen in facts.values()):
        wrong.append("turns are unfinished")
    if gate:
        skip = facts["skip"]
        if skip["events_per_turn"] > MAX_EVENTS_PER_TURN:
            wrong.append(f"{skip['events_per_turn']} events per turn, at most {MAX_EVENTS_PER_TURN} allowed")
        if skip["ratio_to_reference"]["median"] < MIN_RATIO:
            wrong.append(
                f"skip/reference {skip['ratio_to_reference']['median']}, at least {MIN_RATIO} wanted"
            )
    return wrong


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description="Engine speed.")
    parser.add_argument("--case", choices=list(CASES), default="step48")
    parser.add_argument("--impl", default="reference,skip")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gate", action="store_true", help="needs both implementations")
    args = parser.parse_args()
    kinds = args.impl.split(",")
    if args.gate and compiled.in_use:
        parser.error("--gate is for the sources (`make uncompiled`); compiled ones have benchmarks.compiled")
    if args.gate and not {"reference", "skip"} <= set(kinds):
        parser.error("--gate compares reference and skip; name both in --impl")
    case = CASES[args.case]()
    facts = measure(case, kinds, args.reps)
    report(case, facts)
    if args.json:
        rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        out = {"case": case.name, "reps": args.reps, "peak_rss_mib": round(rss_mib, 1), "impl": facts}
        args.json.write_text(json.dumps(out, indent=1) + "\n")
    wrong = failures(facts, args.gate)
    for line in wrong:
        print(f"benchmarks.engine: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
