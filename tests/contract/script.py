"""The workload of the contract tests: what every world that is put to them has to play.

Three groups of two trajectories. Each has two turns: a prompt of 100 tokens, 300 generated, a tool call; then a
prompt of 420 tokens, 200 generated and the end. Trajectory 4 is too long for any replica in its second turn and
trajectory 5's tool answers only after the timeout.
"""

import numpy as np

from libra.core.ids import Supply
from libra.workloads.table import Chunk

NUM_TRAJECTORIES, GROUP_SIZE = 6, 2
FIRST_PROMPT, FIRST_OUTPUT, PAYLOAD, SECOND_OUTPUT = 100, 300, 20, 200
SECOND_PROMPT = FIRST_PROMPT + FIRST_OUTPUT + PAYLOAD
MAX_MODEL_LEN = 1_000
TOO_LONG, HANGS = 4, 5
MAX_NUM_SEQS = 2
START_LATENCY_S, TOOL_LATENCY_S, TOOL_TIMEOUT_S = 0.5, 1.0, 5.0


class Script:
    """A `WorkloadSource` of one chunk."""

    def __init__(self, supply: Supply) -> None:
        self.supply = supply
        self._left = [chunk()]

    def next_chunk(self) -> Chunk | None:
        """The chunk, once."""
        return self._left.pop() if self._left else None


def chunk() -> Chunk:
    """All of it. Pushed trajectories arrive a second apart."""
    n = NUM_TRAJECTORIES
    prompts = np.array([[FIRST_PROMPT, SECOND_PROMPT]] * n)
    outputs = np.array([[FIRST_OUTPUT, SECOND_OUTPUT]] * n)
    outputs[TOO_LONG, 1] = MAX_MODEL_LEN
    latency = np.array([[TOOL_LATENCY_S, TOOL_LATENCY_S]] * n)
    latency[HANGS, 0] = 100 * TOOL_TIMEOUT_S
    group = np.arange(n) // GROUP_SIZE
    return Chunk(
        trajectory_id=np.arange(n),
        group_id=group,
        prompt_id=group,
        sample_index=np.arange(n) % GROUP_SIZE,
        group_size=np.full(n, GROUP_SIZE),
        arrival_s=np.arange(n).astype(np.float64),
        start_latency_s=np.full(n, START_LATENCY_S),
        reward=np.ones(n),
        source_id=tuple(f"t{i}" for i in range(n)),
        prefix=tuple(((-1 - g, FIRST_PROMPT),) for g in group.tolist()),
        first_turn=np.arange(n + 1) * 2,
        prompt_tokens=prompts.ravel(),
        output_tokens=outputs.ravel(),
        prefix_tokens=np.array([[FIRST_PROMPT, FIRST_PROMPT + FIRST_OUTPUT]] * n).ravel(),
        tool=np.zeros(2 * n, dtype=np.int64),
        tool_latency_s=latency.ravel(),
        tool_status=np.zeros(2 * n, dtype=np.int64),
        payload_tokens=np.full(2 * n, PAYLOAD),
        tool_names=("shell",),
    )
