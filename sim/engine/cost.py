"""A replica's step times in integer ticks: quantised once, so that no rounding depends on the order of events."""

from libra.cost.rollout import ReplicaCost
from libra.errors import UserError
from sim.clock import TICKS_PER_S


class CostTable:
    """A replica's step times in ticks. Linear in its coefficients, so a slow replica is a scaled table.

    `base[B]` and `per_context[B]` give a decode step of B sequences with C context tokens:
    base[B] + per_context[B] * C, and no less than decode_host[B], which an engine that captures no graphs needs to
    launch it. A step with prefill: see `mixed` and `host`. Coefficients are integers >= 0. Every
    step takes at least one tick: base[B] for B >= 1 and floor are at least 1.

    `admission`, `admission_seq` and `lag` say when the scheduler sees an arrival (rule E5 of `sim.engine.base`);
    with `lag` the host also launches ahead (rule E6).
    """

    __slots__ = (
        "admission",
        "admission_seq",
        "attention",
        "base",
        "capture_tokens",
        "decode_host",
        "eager",
        "floor",
        "host_seq",
        "lag",
        "least",
        "num_bases",
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
        prefill_base: int | list[int],
        prefill_token: int,
        attention: int,
        floor: int,
        admission: int = 0,
        lag: bool = False,
        *,
        eager: int | None = None,
        capture_tokens: int = 0,
        least: int = 0,
        host_seq: int = 0,
        admission_seq: int = 0,
        decode_host: list[int] | None = None,
    ) -> None:
        self.base = base
        self.per_context = per_context
        self.seq = seq
        # By tokens in the step; longer steps have the last entry.
        self.prefill_base = prefill_base if isinstance(prefill_base, list) else [prefill_base]
        self.num_bases = len(self.prefill_base)
        self.prefill_token = prefill_token
        self.attention = attention  # femto-ticks (1e-3 tick) per (token x context token)
        self.floor = floor
        self.eager = floor if eager is None else eager
        self.capture_tokens = capture_tokens
        self.least = least
        self.host_seq = host_seq
        self.admission_seq = admission_seq
        self.decode_host = [0] * len(base) if decode_host is None else decode_host
        self.admission = admission
        self.lag = lag
        if min(self.floor, self.eager) < 1 or min(base[1:], default=1) < 1:
            raise UserError(
                "engine cost: a step would take no time; give base[1:] and floor at least one tick"
            )
        single = (seq, prefill_token, attention, admission, least, host_seq, admission_seq)
        if min(*single, *self.prefill_base, *self.decode_host, *per_context, *base) < 0:
            raise UserError("engine cost: a coefficient is negative; give integers of 0 or more")

    @classmethod
    def from_cost(cls, cost: ReplicaCost, max_num_seqs: int, slowdown: float = 1.0) -> "CostTable":
        """Quantise a cost in seconds; `slowdown` > 1 makes a straggler."""
        scale = TICKS_PER_S * slowdown
        context = round(cost.decode_per_context_token_s * cost.dispersed_kv_factor * scale)
        per_token = round(cost.prefill_per_token_s * scale)
        # Beyond some thousand tokens every expert is read.
        sizes = range(4097) if cost.num_experts else range(1)
        return cls(
            base=[max(1, round(cost.decode_fixed_s(batch) * scale)) for batch in range(max_num_seqs + 1)],
            per_context=[context] * (max_num_seqs + 1),
            seq=round(cost.mixed_per_seq_s * scale),
            prefill_base=[round((cost.prefill_base_s + cost.experts_read_s(n)) * scale) for n in sizes],
            prefill_token=per_token,
            attention=round(cost.prefill_per_attention_s * scale * 1000),
            floor=max(1, round(cost.graph_host_s * scale)),
            admission=round(cost.admission_s * scale),
            lag=cost.async_scheduling,
            eager=max(1, round(cost.eager_host_s * scale)),
            capture_tokens=cost.capture_tokens,
            least=round(cost.decode_base_s * scale),
            host_seq=round(cost.host_per_seq_s * scale),
            admission_seq=round(cost.admission_per_seq_s * scale),
            decode_host=[round(cost.decode_host_s(batch) * scale) for batch in range(max_num_seqs + 1)],
        )

    def mixed(self, batch: int, context_tokens: int, prefill_tokens: int, attention_x2: int) -> int:
        """The GPU's ticks for a step with prefill; `attention_x2` = sum of chunk * (2 * tokens before + chunk)."""
        bases = self.prefill_base
        tokens = batch + prefill_tokens
        linear = (
            bases[tokens if tokens < self.num_bases else -1]
            + self.seq * batch
            + self.prefill_token * prefill_tokens
        )
        if linear < self.least:
            linear = self.least
        return linear + self.per_context[batch] * context_tokens + self.attention * attention_x2 // 2000

    def host(self, tokens: int, num_seqs: int) -> int:
        """The host's ticks to launch a step of `tokens` tokens of `num_seqs` sequences that holds any prefill."""
        return (self.floor if tokens <= self.capture_tokens else self.eager) + self.host_seq * num_seqs
