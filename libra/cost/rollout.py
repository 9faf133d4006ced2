"""Step time of one serving replica, as a function of what is in the step.

A step of continuous batching generates one token for each of `B` decoding sequences, whose contexts sum to `C`
tokens, and may prefill `P` prompt tokens besides. The model, T = B + P tokens in the step:

    decode step        A(B) + c * C
    step with prefill  max(base, w + l * T) + c * C + a * sum(chunk * (tokens before + chunk / 2))       on the GPU,
                       and no sooner than the host, which needs H to launch it and may have begun early

Why these terms. A(B) = base + per_seq * (B, padded to the next captured CUDA graph) + what the experts of a mixture
add: a batch reads each expert that one of its tokens is routed to, E * (1 - (1 - k / E)^B) of E in expectation. A
decode step is one CUDA graph, so the host costs next to nothing. A step that holds any prefill is launched kernel by
kernel, or in piecewise graphs up to `capture_tokens` tokens: H has two levels, and grows with the sequences. An
engine that schedules ahead begins with that while the step before still runs on the GPU, so the host is felt only
where it is slower than both (`sim.engine` keeps that account, rule E6). This form was read off a log of 18,000
scheduler steps on H200 (Qwen3-4B, 8B, 14B; TP 1 and 2; vLLM 0.26.0), which it describes within 0.4 % in sum and 1 to
3 % in windows of 20 steps; docs/fidelity.md.

Only the pure decode step must be affine in `C` at fixed `B` (the event-skipping engine advances many of them in
closed form); steps with prefill are simulated one by one.

`ReplicaCost` holds seconds. The simulator quantises them to integer ticks once, when it loads them.
"""

from dataclasses import dataclass, field, replace


def captured_tokens(max_num_seqs: int) -> int:
    """Largest CUDA graph that vLLM captures by default, in tokens."""
    return min(2 * max_num_seqs, 512)


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """Coefficients of one (GPU, model, TP degree), in seconds; at most ten of them are fitted to data.

    decode_base_s: weights read, launch and scheduling, per decode step.
    decode_per_seq_s: per decoding sequence in the step, padding included.
    decode_per_context_token_s: per token of context that decoding sequences attend to, KV blocks freshly laid out.
    prefill_base_s, prefill_per_token_s: w and l, over all tokens of a step that holds any prefill.
    prefill_per_attention_s: per (prefilled token x context token that it attends to).
    graph_host_s, eager_host_s: H for steps of up to `capture_tokens` tokens, and beyond; host_per_seq_s: added to it
        for each sequence in the step, prefilling or decoding.
    admission_s: from a request's submission until the scheduler may see it, with what its answer takes back;
        admission_per_seq_s: added to it for each sequence that the engine runs then, whose tokens the same front end
        streams back.
    dispersed_kv_factor: decode_per_context_token_s times this once blocks of many sequences lie mixed in memory, as
        they do after minutes of multi-turn load. 1 for a fresh engine.
    experts_s: reading all experts of all layers once; 0 for a dense model. `num_experts`, `experts_per_token`: E, k.
    capture_tokens, async_scheduling: settings of the engine, not coefficients. capture_tokens 0 (enforce_eager): no
        graphs, so the host launches decode steps kernel by kernel as well.
    kv_capacity_tokens: tokens of KV cache that the replica can hold.
    source: where the numbers come from.
    """

    gpu: str
    model: str
    tp: int
    decode_base_s: float
    decode_per_seq_s: float
    decode_per_context_token_s: float
    prefill_base_s: float
    prefill_per_token_s: float
    prefill_per_attention_s: float
    graph_host_s: float
    eager_host_s: float
    kv_capacity_tokens: int
    host_per_seq_s: float = 0.0
    admission_s: float = 0.0
    admission_per_seq_s: float = 0.0
    dispersed_kv_factor: float = 1.0
    experts_s: float = 0.0
    num_experts: int = 0
    experts_per_token: int = 0
    capture_tokens: int = 256
    async_scheduling: bool = True
    source: str = field(default="", compare=False)

    def captured(self, max_num_seqs: int, enforce_eager: bool) -> "ReplicaCost":
        """The cost with the graphs that vLLM captures under these settings; unchanged where it never captures any."""
        if not self.capture_tokens:
            return self
        return replace(self, capture_tokens=0 if enforce_eager else captured_tokens(max_num_seqs))

    def padded(self, batch: int) -> int:
        """Sequences of the CUDA graph that runs a decode step of `batch`: vLLM captures 1, 2, 4, 8, 16, 24, ..."""
        if batch > self.capture_tokens:
            return batch
        step = 16 if batch > 256 else 8
        return next((size for size in (0, 1, 2, 4) if batch <= size), -(-batch // step) * step)

    def experts_read_s(self, tokens: int) -> float:
        """Reading the experts that `tokens` tokens are expected to be routed to."""
        if not self.num_experts:
            return 0.0
        missed = (1.0 - self.experts_per_token / self.num_experts) ** tokens
        return self.experts_s * (1.0 - missed)

    def decode_fixed_s(self, batch: int) -> float:
        """A(B): the part of a pure decode step that does not depend on contexts."""
        return (
            self.decode_base_s
            + self.decode_per_seq_s * self.padded(batch)
            + (self.experts_read_s(batch) if batch else 0.0)
        )

    def decode_s(self, batch: int, context_tokens: int) -> float:
        """A pure decode step of `batch` sequences with `context_tokens` in all, KV blocks freshly laid out."""
        return self.decode_fixed_s(batch) + self.decode_per_context_token_s * context_tokens

    @property
    def mixed_per_seq_s(self) -> float:
        """A decoding sequence in a step with prefill: one more token, and no less than it costs in a decode step."""
        return max(self.decode_per_seq_s, self.prefill_per_token_s)

    def prefill_gpu_s(self, batch: int, context_tokens: int, prefill_tokens: int, attention: float) -> float:
        """The GPU's time for a step with prefill beside `batch` decodes.

        `attention` is the sum over prefill chunks of chunk * (tokens before the chunk + chunk / 2).
        """
        linear_s = (
            self.prefill_base_s
            + self.mixed_per_seq_s * batch
            + self.prefill_per_token_s * prefill_tokens
            + self.experts_read_s(batch + prefill_tokens)
        )
        return (
            max(self.decode_base_s, linear_s)
            + self.decode_per_context_token_s * context_tokens
            + self.prefill_per_attention_s * attention
        )

    def host_s(self, tokens: int, num_seqs: int) -> float:
        """H: the host's time to launch a step of `tokens` tokens of `num_seqs` sequences that holds any prefill."""
        level_s = self.graph_host_s if tokens <= self.capture_tokens else self.eager_host_s
        return level_s + self.host_per_seq_s * num_seqs

    def decode_host_s(self, batch: int) -> float:
        """Least time of a decode step: the host's, where it launches every kernel; 0 where a graph does."""
        return self.host_s(batch, batch) if batch > self.capture_tokens else 0.0

    def prompt_s(self, prompt_tokens: int, chunk_tokens: int) -> float:
        """Time to first token of one prompt on an idle engine without a cached prefix, in chunks."""
        total_s, before, head_start_s = self.admission_s, 0, 0.0
        while before < prompt_tokens:
            chunk = min(chunk_tokens, prompt_tokens - before)
            gpu_s = self.prefill_gpu_s(0, 0, chunk, chunk * (before + chunk / 2))
            # The host launches the next chunk while the one before runs: rule E6 of `sim.engine.base`.
            wait_s = self.host_s(chunk, 1) - head_start_s
            step_s = max(gpu_s, wait_s)
            if self.async_scheduling:
                head_start_s = step_s - max(0.0, wait_s)
            total_s += step_s
            before += chunk
        return total_s
