"""Measure a real vLLM engine with random weights, so that the simulator's step times can be fitted and checked.

    python -m benchmarks.gpu --model-shape qwen3-4b --tp 1 --out DIR --phases decode,mixed
    python -m benchmarks.gpu --model-shape qwen3-4b --out DIR --phases trace --trace FILE --concurrency 96

Phases, in this order; each writes its table into DIR row by row:
    decode  grid.csv: prefills alone and together; batches 1 to 128 decoding at contexts of 128 to 8,192 tokens
    mixed   mixed.csv: single prefills of 16 to 2,048 tokens beside a decoding batch, alone, and after a warm prefix
    trace   trace_NAME_cN.csv: trajectories of --trace, N at once, each prompt its own past and new random tokens

Beside them: steps.csv (every step of the engine as its scheduler saw it; benchmarks/gpu/step_log.py has the columns),
requests.csv (every request as this client saw it), facts.json (versions, KV capacity, CUDA graphs, start time).
All times of both files are of one clock. `python -m benchmarks.gpu.check DIR` compares the two.
"""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.decode import run_decode
from benchmarks.gpu.engine import Client, installed_vllm, open_requests, start
from benchmarks.gpu.forms import GRID_COLUMNS, MIXED_COLUMNS, Table
from benchmarks.gpu.mixed import run_mixed
from benchmarks.gpu.plan import PHASES, PLANS, Plan, parse_phases
from benchmarks.gpu.progress import Progress
from benchmarks.gpu.replay import Replay
from benchmarks.gpu.shapes import MAX_MODEL_LEN, SHAPES
from benchmarks.gpu.trace import Trajectory, random_ids, read_trace
from libra.cost.points import TRACE_COLUMNS
from libra.errors import UserError, refused_by_file_system


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--model-shape", default="tiny", help=", ".join(SHAPES))
    made.add_argument("--tp", type=int, default=1, help="GPUs of the engine")
    made.add_argument("--out", type=Path, required=True, help="folder for the results; made if absent")
    made.add_argument("--phases", default="decode,mixed", help=f"of {','.join(PHASES)}")
    made.add_argument("--plan", choices=PLANS, help="small: a rehearsal; default small for tiny, else full")
    made.add_argument("--trace", type=Path, nargs="+", default=[], help="CSV files of turns, played in turn")
    made.add_argument(
        "--concurrency", type=int, nargs="+", default=[64], help="one for each --trace, or for all"
    )
    made.add_argument(
        "--deadline", type=float, nargs="+", default=[0.0], help="seconds a trace may take; 0: no bound"
    )
    made.add_argument("--limit", type=float, default=90.0, help="seconds for decode and for mixed, each")
    made.add_argument("--temperature", type=float, default=0.0, help="0: the most likely token")
    return made


def plays(args: argparse.Namespace) -> list[tuple[Path, list[Trajectory], int, float]]:
    """(file, trajectories, concurrency, deadline) of each --trace; UserError before an engine is started."""
    files: list[Path] = args.trace
    if not files:
        raise UserError("--phases trace: no --trace; name a CSV file of turns")
    made = []
    for i, path in enumerate(files):
        concurrency, deadline_s = (
            _of("--concurrency", args.concurrency, i, files),
            _of("--deadline", args.deadline, i, files),
        )
        if concurrency < 1:
            raise UserError(f"--concurrency {concurrency}: too small; give 1 or more")
        made.append((path, read_trace(path, MAX_MODEL_LEN), int(concurrency), deadline_s))
    return made


def _of(option: str, values: Sequence[float], index: int, files: Sequence[Path]) -> float:
    if len(values) not in (1, len(files)):
        raise UserError(f"{option}: {len(values)} values for {len(files)} traces; give one, or one for each")
    return values[index] if len(values) > 1 else values[0]


async def measure(args: argparse.Namespace) -> None:
    """Start an engine, run the phases, stop it."""
    phases = parse_phases(args.phases)
    traces = plays(args) if "trace" in phases else []
    plan = PLANS[args.plan or ("small" if args.model_shape == "tiny" else "full")]
    out: Path = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    progress.row("engine", f"{' '.join(installed_vllm())}, {args.model_shape}, TP {args.tp}: starting")
    engine, facts = await start(args.model_shape, args.tp, out)
    facts |= {"temperature": args.temperature, "phases_s": {}, "trace_mismatches": {}}
    _write(out, facts)
    progress.row(
        "engine",
        f"ready in {facts['start_s']} s; scheduler {facts['scheduler']} of {facts['scheduler_bases']}; "
        f"asynchronous scheduling {facts['async_scheduling']}; {facts['kv_tokens']} tokens of KV cache",
    )
    try:
        with open_requests(out) as requests, _one_line_if_it_dies():
            client = Client(engine, requests, facts, args.temperature)
            await _warm_up(client)
            progress.row("engine", "warm")
            for phase in phases:
                begun_s = progress.elapsed_s
                if phase == "trace":
                    for play in traces:
                        await _trace(client, out, facts, progress, *play)
                else:
                    await _limited(phase, args.limit, progress, _grid(phase, client, plan, out, progress))
                await client.idle()
                facts["phases_s"][phase] = round(progress.elapsed_s - begun_s, 2)
                _write(out, facts)
                progress.row(phase, f"done in {facts['phases_s'][phase]} s")
    finally:
        engine.shutdown()
    progress.row("engine", "stopped")


@contextlib.contextmanager
def _one_line_if_it_dies() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "EngineDeadError":  # vLLM's own, which is not imported here
            raise
        raise UserError(
            "the engine died; its own messages are above, tables hold what came before"
        ) from error


async def _warm_up(client: Client) -> None:
    """What is compiled at first use is compiled now."""
    for length in (20, 64, 300, 1500, 5000):
        await client.serve("warm", f"p{length}", random_ids((0, length), length, client.vocabulary), 20)
    prompts = [random_ids((0, 0, i), 100, client.vocabulary) for i in range(client.max_num_seqs)]
    await asyncio.gather(*(client.serve("warm", "batch", prompt, 20) for prompt in prompts))


async def _grid(phase: str, client: Client, plan: Plan, out: Path, progress: Progress) -> None:
    if phase == "decode":
        with Table(out / "grid.csv", GRID_COLUMNS) as table:
            await run_decode(client, plan, table, progress)
    else:
        with Table(out / "mixed.csv", MIXED_COLUMNS) as table:
            await run_mixed(client, plan, table, progress)


async def _limited(phase: str, limit_s: float, progress: Progress, work: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        progress.row(phase, f"cut off after {limit_s:g} s; what was measured is written")


async def _trace(
    client: Client,
    out: Path,
    facts: dict[str, Any],
    progress: Progress,
    path: Path,
    trajectories: list[Trajectory],
    concurrency: int,
    deadline_s: float,
) -> None:
    name = f"{path.stem}_c{concurrency}"
    await client.idle()
    await client.engine.reset_prefix_cache()  # what the phases before left there would only be evicted
    with Table(out / f"trace_{name}.csv", TRACE_COLUMNS) as table:
        replay = Replay(client, name, table, progress)
        length_s = await replay.run(trajectories, concurrency, deadline_s)
        facts["trace_mismatches"][name] = replay.num_mismatches
        progress.row(
            "trace",
            f"{name}: {table.num_rows} turns of {sum(len(one.turns) for one in trajectories)} in {length_s:.2f} s; "
            f"{replay.num_mismatches} with other lengths than asked for",
        )


def _write(out: Path, facts: dict[str, Any]) -> None:
    (out / "facts.json").write_text(json.dumps(facts, indent=2, default=str) + "\n")


def main() -> int:
    """Command line; exit status."""
    args = parser().parse_args()
    try:
        asyncio.run(measure(args))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(refused_by_file_system(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
