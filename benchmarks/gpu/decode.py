"""The phase `decode`: prefills alone, prefills together, and equal batches that decode."""

import asyncio
import statistics
from collections.abc import Sequence

from benchmarks.gpu.engine import Client, Served
from benchmarks.gpu.forms import Table
from benchmarks.gpu.plan import Plan
from benchmarks.gpu.progress import Progress
from benchmarks.gpu.step_log import now_s
from benchmarks.gpu.trace import random_ids

_ALONE, _TOGETHER, _CONTEXT = 1, 2, 3
"""First parts of seeds: prompts of different purpose share nothing."""


def context_prompt(client: Client, context: int, index: int) -> list[int]:
    """The prompt of decoding request `index` at that context: the same in every phase, so that caches hold it."""
    return random_ids((_CONTEXT, context, index), context, client.vocabulary)


async def fill(client: Client, phase: str, case: str, prompts: Sequence[Sequence[int]]) -> None:
    """Bring prompts into the prefix cache; those that are there cost next to nothing."""
    await asyncio.gather(*(client.serve(phase, f"{case} fill", prompt, 1) for prompt in prompts))


async def run_decode(client: Client, plan: Plan, table: Table, progress: Progress) -> None:
    """All of the phase, row by row."""
    await _prefills(client, plan, table, progress)
    for batch, length in plan.prefill_batches:
        prompts = [random_ids((_TOGETHER, batch, length, i), length, client.vocabulary) for i in range(batch)]
        served = await asyncio.gather(
            *(client.serve("decode", f"batch{batch}x{length}", prompt, 1) for prompt in prompts)
        )
        value_s = max(one.last_s for one in served) - min(one.submit_s for one in served)
        table.add("prefill_batch", batch, length, 1, value_s, 0, 0)
        progress.row("prefill_batch", f"{batch} x {length} tokens: {value_s * 1e3:.1f} ms")
    for batch, context in plan.decode_cells(client.kv_tokens, client.max_num_seqs):
        await _cell(client, plan, table, progress, batch, context)


async def _prefills(client: Client, plan: Plan, table: Table, progress: Progress) -> None:
    for length in plan.prefill_lengths:
        values = []
        for i in range(plan.repeats(length)):
            prompt = random_ids((_ALONE, length, i), length, client.vocabulary)
            values.append((await client.serve("decode", f"prefill{length}", prompt, 1)).ttft_s)
        median = statistics.median(values)
        table.add("prefill", 1, length, 1, median, min(values), max(values))
        progress.row("prefill", f"{length} tokens: {median * 1e3:.1f} ms")


async def _cell(
    client: Client, plan: Plan, table: Table, progress: Progress, batch: int, context: int
) -> None:
    case = f"b{batch}c{context}"
    prompts = [context_prompt(client, context, index) for index in range(batch)]
    await fill(client, "decode", case, prompts)
    begun_s = now_s()
    served = await asyncio.gather(
        *(client.serve("decode", case, prompt, plan.decode_tokens) for prompt in prompts)
    )
    total_s = now_s() - begun_s
    value_s = steady_s(served)
    table.add("decode", batch, context, plan.decode_tokens, value_s, total_s, batch if value_s > 0 else 0)
    progress.row("decode", f"{batch} x {context}: {value_s * 1e3:.3f} ms a token")


def steady_s(served: Sequence[Served]) -> float:
    """Seconds per output token while all of them run, mean over the requests; -1 if that is under ten tokens."""
    start_s, end_s = max(one.first_s for one in served), min(one.last_s for one in served)
    rates = [one.rate(start_s, end_s) for one in served]
    if not all(rates) or end_s - start_s < 9 * max(rates):
        return -1.0
    return statistics.fmean(rates)
