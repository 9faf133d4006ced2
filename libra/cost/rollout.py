"""Step time of one serving replica, as a function of what is in the step.

A step of continuous batching generates one token for each of `B` decoding sequences, whose contexts sum to
`C` tokens, and may prefill some prompt tokens besides. The model:

    decode step      A(B) + c(B) * C
    step with prefill  decode part + prefill part, not below a floor

Only the pure decode step must be affine in `C` at fixed `B` (the event-skipping engine advances many of them
in closed form); steps with prefill are simulated one by one and may use any function.

`ReplicaCost` holds seconds. The simulator quantises them to integer ticks once, when it loads them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """Coefficients of one (GPU, model, TP degree), in seconds.

    decode_base_s: weights read, launch and scheduling, per decode step.
    decode_per_seq_s: per decoding sequence in the step.
    decode_per_context_token_s: per token of context that the step attends to.
    prefill_base_s: fixed part of a step that holds any prefill (added to the decode part's `per_seq` and
        `per_context` terms; a mixed step reads the weights once).
    prefill_per_token_s: per prefilled token.
    prefill_per_attention_s: per (prefilled token x context token it attends to).
    prefill_floor_s: least duration of a step that holds any prefill.
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
    prefill_floor_s: float
    kv_capacity_tokens: int
    source: str = field(default="", compare=False)

    def decode_s(self, batch: int, context_tokens: int) -> float:
        """Duration of a pure decode step of `batch` sequences with `context_tokens` in all."""
        return (
            self.decode_base_s
            + self.decode_per_seq_s * batch
            + self.decode_per_context_token_s * context_tokens
        )

    def mixed_s(self, batch: int, context_tokens: int, prefill_tokens: int, attention: float) -> float:
        """Duration of a step with prefill.

        `attention` is the sum over prefill chunks of chunk * (tokens before the chunk + chunk / 2).
        """
        total = (
            self.prefill_base_s
            + self.decode_per_seq_s * batch
            + self.decode_per_context_token_s * context_tokens
            + self.prefill_per_token_s * prefill_tokens
            + self.prefill_per_attention_s * attention
        )
        return max(total, self.prefill_floor_s)
