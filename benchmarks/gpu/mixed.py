"""The phase `mixed`: single prefills beside a decoding batch, prefills alone, and prefills after a warm prefix."""

import asyncio
import contextlib
import statistics

from benchmarks.gpu.decode import context_prompt, fill
from benchmarks.gpu.engine import Client, Served
from benchmarks.gpu.forms import Table
from benchmarks.gpu.plan import WINDOW_TOKENS, Plan
from benchmarks.gpu.progress import Progress
from benchmarks.gpu.step_log import now_s
from benchmarks.gpu.trace import random_ids

_ALONE, _WARM, _BESIDE = 11, 12, 13
_REPEATS = 8
_NEW_TOKENS = 32


async def run_mixed(client: Client, plan: Plan, table: Table, progress: Progress) -> None:
    """All of the phase, row by row."""
    for length in plan.alone_lengths:
        prompts = [random_ids((_ALONE, length, i), length, client.vocabulary) for i in range(_REPEATS + 2)]
        values = [(await client.serve("mixed", f"alone{length}", prompt, 1)).ttft_s for prompt in prompts][2:]
        _summary(table, progress, "prefill_alone", 0, length, values)
    for length in plan.warm_prefixes:
        prefix = random_ids((_WARM, length), length, client.vocabulary)
        await fill(client, "mixed", f"warm{length}", [prefix])
        values = []
        for i in range(_REPEATS):
            prompt = prefix + random_ids((_WARM, length, i), _NEW_TOKENS, client.vocabulary)
            values.append((await client.serve("mixed", f"warm{length}", prompt, 1)).ttft_s)
        _summary(table, progress, f"warm_prefix_{_NEW_TOKENS}_new", length, _NEW_TOKENS, values)
    for batch, context in plan.mixed_cells(client.kv_tokens, client.max_num_seqs):
        prompts = [context_prompt(client, context, index) for index in range(batch)]
        await fill(client, "mixed", f"b{batch}c{context}", prompts)
        await _window(client, 0.2, prompts, 0)  # an empty one first: what is done once is done then
        for length in (0, *plan.mixed_lengths):
            value_s, ttfts = await _window(client, plan.window_s, prompts, length)
            mean_s = statistics.fmean(ttfts) if ttfts else 0.0
            note = f"mean ttft of the prefill {mean_s:.5f} s; value = mean step time over the window"
            table.add("mixed", batch, context, length, value_s, len(ttfts), note)
            progress.row(
                "mixed", f"{batch} x {context} + {length}: {value_s * 1e3:.3f} ms, {len(ttfts)} of them"
            )


def _summary(
    table: Table, progress: Progress, kind: str, context: int, length: int, values: list[float]
) -> None:
    median = statistics.median(values)
    note = f"min {min(values):.5f} max {max(values):.5f}"
    table.add(kind, 1, context, length, median, len(values), note)
    progress.row(kind, f"{context} + {length} tokens: {median * 1e3:.1f} ms")


async def _window(
    client: Client, window_s: float, prompts: list[list[int]], length: int
) -> tuple[float, list[float]]:
    """Mean step time (seconds) while `prompts` decode and prefills of `length` follow one another, and their TTFTs.

    Every window begins with the batch at its prompts' length, which the prefix cache holds, and ends by aborting it.
    """
    case = f"b{len(prompts)}c{len(prompts[0])}p{length}"
    batch = [Served(0.0) for _ in prompts]
    tasks = [
        asyncio.create_task(client.serve("mixed", case, prompt, WINDOW_TOKENS, one))
        for prompt, one in zip(prompts, batch, strict=True)
    ]
    try:
        while not all(len(one.token_ids) >= 4 for one in batch):
            await asyncio.sleep(0.001)
            for task in tasks:
                if task.done():
                    task.result()
        start_s = now_s()
        ttfts = []
        while now_s() < start_s + window_s:
            if length:
                seed = (_BESIDE, len(prompts), len(prompts[0]), length, len(ttfts))
                prompt = random_ids(seed, length, client.vocabulary)
                ttfts.append((await client.serve("mixed", case, prompt, 1)).ttft_s)
            else:
                await asyncio.sleep(0.01)
        end_s = now_s()
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await client.idle()
    rates = [one.rate(start_s, end_s) for one in batch]
    return statistics.fmean(rates), ttfts
