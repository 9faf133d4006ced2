"""Router overhead: the executor's driver against a bare load generator, on stand-in endpoints of fixed rate.

    python -m benchmarks.driver --pairs 7 [--gate]

64 streams are kept in flight over two endpoints, each a process of its own (`executor.engines.fake_server`) that
generates 100 tokens a second for each stream, whatever their number. Once through controller, policies, engines'
port, environment and record; once by 64 workers that do nothing but post and read. Both sides make the same requests
and get the same tokens, which is checked in every pair; within a pair they take turns in being first.

`--gate` demands three things. A turn costs the driver at most 2 ms of CPU: the process's own time in its best run,
since other work on the machine only ever adds to it. The median pair's ratio of wall times is at most 1.10. And a
turn costs no more function calls than when the bound was set, which shows a slow change long before a time does.
Pairs are added, up to three times as many, until the first two hold.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from benchmarks.driver_load import Load, Measured, endpoints, run_bare
from benchmarks.driver_world import run_driver

MAX_CPU_MS_PER_TURN = 2.0
MAX_WALL_RATIO = 1.10
MAX_CALLS_PER_TURN = 1900.0
"""Python and C functions called per turn; 1,555 to 1,585 when the bound was set (CPython 3.11, aiohttp 3.14)."""
COUNTED_TRAJECTORIES = 128
"""Trajectories of the run whose calls are counted: counting slows it down."""

Pair = tuple[Measured, Measured]
"""Bare, driver."""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.driver", description="What the executor's driver costs."
    )
    load = Load()
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--trajectories", type=int, default=load.num_trajectories, help="a multiple of 8")
    parser.add_argument("--streams", type=int, default=load.in_flight)
    parser.add_argument("--prompt-tokens", type=int, default=load.prompt_tokens)
    parser.add_argument("--tokens-per-s", type=float, default=load.tokens_per_s, help="of each stream")
    parser.add_argument("--gate", action="store_true", help="exit 1 beyond the bounds")
    args = parser.parse_args()
    load = replace(
        load,
        num_trajectories=args.trajectories // 8 * 8,
        in_flight=args.streams,
        prompt_tokens=args.prompt_tokens,
        tokens_per_s=args.tokens_per_s,
    )
    return asyncio.run(measure(load, args.pairs, args.gate))


async def measure(load: Load, num_pairs: int, gate: bool) -> int:
    """Run the pairs and print the table; exit status."""
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with endpoints(load, folder) as addresses:
            await run_bare(load, addresses)  # fills the endpoints' prefix caches
            for _ in range(3 if gate else 1):
                for _ in range(num_pairs):
                    pairs.append(await _pair(load, addresses, folder, len(pairs)))
                if _times_hold(pairs):
                    break
            calls = await calls_per_turn(load, addresses, folder)
    for line in (*table(load, pairs), *_verdicts(pairs, calls)):
        print(line)
    return 0 if not gate or (_times_hold(pairs) and calls <= MAX_CALLS_PER_TURN) else 1


async def _pair(load: Load, addresses: Sequence[str], folder: Path, number: int) -> Pair:
    own = folder / f"pair{number}"
    own.mkdir()
    if number % 2:
        driver = await run_driver(load, addresses, own)
        bare = await run_bare(load, addresses)
    else:
        bare = await run_bare(load, addresses)
        driver = await run_driver(load, addresses, own)
    if bare.answers != driver.answers or bare.num_turns != load.num_turns_in_all:
        raise AssertionError(f"the two sides made different requests: {bare.answers}, {driver.answers}")
    return bare, driver


async def calls_per_turn(load: Load, addresses: Sequence[str], folder: Path) -> float:
    """Function calls of a shorter run through the driver, Python's and C's, over its turns."""
    own = folder / "counted"
    own.mkdir()
    count = 0

    def on_call(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(on_call)
    try:
        run = await run_driver(replace(load, num_trajectories=COUNTED_TRAJECTORIES), addresses, own)
    finally:
        sys.setprofile(None)
    return count / run.num_turns


def cpu_ms_per_turn(runs: Sequence[Measured]) -> list[float]:
    """Of each run, least first."""
    return sorted(run.cpu_s / run.num_turns * 1e3 for run in runs)


def wall_ratios(pairs: Sequence[Pair]) -> list[float]:
    """Driver over bare, of each pair, least first."""
    return sorted(driver.wall_s / bare.wall_s for bare, driver in pairs)


def _times_hold(pairs: Sequence[Pair]) -> bool:
    cpu_ms = cpu_ms_per_turn([driver for _, driver in pairs])[0]
    return cpu_ms <= MAX_CPU_MS_PER_TURN and statistics.median(wall_ratios(pairs)) <= MAX_WALL_RATIO


def table(load: Load, pairs: Sequence[Pair]) -> list[str]:
    """What was measured, side by side."""
    lines = [
        f"{load.num_trajectories} trajectories x {load.num_turns} turns, {load.in_flight} in flight on "
        f"{load.num_endpoints} endpoints; prompts of {load.prompt_tokens} tokens, turns of {load.min_tokens} to "
        f"{load.max_tokens} at {load.tokens_per_s:g} tokens/s a stream; {len(pairs)} pairs",
        "          wall s     best  CPU ms/turn    best  tokens/s  events/turn",
    ]
    for name, runs in (("bare", [bare for bare, _ in pairs]), ("driver", [driver for _, driver in pairs])):
        wall_s = sorted(run.wall_s for run in runs)
        cpu_ms = cpu_ms_per_turn(runs)
        rate = runs[0].output_tokens / statistics.median(wall_s)
        lines.append(
            f"{name:7s} {statistics.median(wall_s):8.2f} {wall_s[0]:8.2f} {statistics.median(cpu_ms):12.2f} "
            f"{cpu_ms[0]:7.2f} {rate:9,.0f} {runs[0].num_events / runs[0].num_turns:12.2f}"
        )
    turns, tokens, _ = pairs[0][0].answers
    return [*lines, f"same tokens on both sides: {turns:,} turns, {tokens:,} tokens"]


def _verdicts(pairs: Sequence[Pair], calls: float) -> list[str]:
    cpu_ms = cpu_ms_per_turn([driver for _, driver in pairs])[0]
    ratios = wall_ratios(pairs)
    return [
        f"driver: {cpu_ms:.2f} ms of CPU a turn (gate {MAX_CPU_MS_PER_TURN:g})",
        f"driver over bare, wall time: median {statistics.median(ratios):.3f}, {ratios[0]:.3f} to {ratios[-1]:.3f} "
        f"(gate {MAX_WALL_RATIO:g})",
        f"driver: {calls:,.0f} function calls a turn (gate {MAX_CALLS_PER_TURN:,.0f})",
    ]


if __name__ == "__main__":
    sys.exit(main())
