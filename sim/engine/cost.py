"""A replica's step times in integer ticks: quantised once, so that no rounding depends on the order of events."""

from libra.cost.rollout import ReplicaCost
from libra.errors import UserError
from sim.clock import TICKS_PER_S


class CostTable:
    """A replica's step times in ticks. Linear in its coefficients, so a slow replica is a scaled table.

    `base[B]` and `per_context[B]` give a decode step of B sequences with C context tokens:
    base[B] + per_context[B] * C. Coefficients are integers >= 0. Every step takes at least one tick: base[B]
    for B >= 1 and floor are at least 1.

    `admission` and `lag` say when the scheduler sees an arrival (rule E5 of `sim.engine.base`).
    """

    __slots__ = (
        "admission",
        "attention",
        "base",
        "floor",
        "lag",
        "per_context",
        "prefill_base",
        "prefill_token",
        "seq",
    )

    def __init__(
        self,
        base: list[int],
        per_context: list[int],
        seq: int,
        prefill_base: int,
        prefill_token: int,
        attention: int,
        floor: int,
        admission: int = 0,
        lag: bool = False,
    ) -> None:
        self.base = base
        self.per_context = per_context
        self.seq = seq
        self.prefill_base = prefill_base
        self.prefill_token = prefill_token
        self.attention = attention  # femto-ticks (1e-3 tick) per (token x context token)
        self.floor = floor
        self.admission = admission
        self.lag = lag
        if floor < 1 or min(base[1:], default=1) < 1:
            raise UserError(
                "engine cost: a step would take no time; give base[1:] and floor at least one tick"
            )
        if min(seq, prefill_base, prefill_token, attention, admission, *per_context, *base) < 0:
            raise UserError("engine cost: a coefficient is negative; give integers of 0 or more")

    @classmethod
    def from_cost(cls, cost: ReplicaCost, max_num_seqs: int, slowdown: float = 1.0) -> "CostTable":
        """Quantise a cost in seconds; `slowdown` > 1 makes a straggler."""
        scale = TICKS_PER_S * slowdown
        seq = round(cost.decode_per_seq_s * scale)
        base = max(1, round(cost.decode_base_s * scale))
        context = round(cost.decode_per_context_token_s * scale)
        return cls(
            base=[base + seq * batch for batch in range(max_num_seqs + 1)],
            per_context=[context] * (max_num_seqs + 1),
            seq=seq,
            prefill_base=max(1, round(cost.prefill_base_s * scale)),
            prefill_token=round(cost.prefill_per_token_s * scale),
            attention=round(cost.prefill_per_attention_s * scale * 1000),
            floor=max(1, round(cost.prefill_floor_s * scale)),
        )

    def mixed(self, batch: int, context_tokens: int, prefill_tokens: int, attention_x2: int) -> int:
        """Ticks of a step with prefill; `attention_x2` = sum of chunk * (2 * tokens before + chunk)."""
        total = (
            self.prefill_base
            + self.seq * batch
            + self.per_context[batch] * context_tokens
            + self.prefill_token * prefill_tokens
            + self.attention * attention_x2 // 2000
        )
        return total if total > self.floor else self.floor
