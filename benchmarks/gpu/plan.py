"""What is measured, in which order, and what fits into the engine's KV cache."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from libra.errors import UserError

PHASES: Final = ("decode", "mixed", "trace")
WINDOW_TOKENS: Final = 2500
"""At most so many tokens come from each decoding request during one window of the phase `mixed`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Lengths in tokens, batches in requests; `*_repeats` are (at most this many tokens, times measured)."""

    prefill_lengths: tuple[int, ...]
    prefill_repeats: tuple[tuple[int, int], ...]
    prefill_batches: tuple[tuple[int, int], ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    decode_tokens: int
    alone_lengths: tuple[int, ...]
    warm_prefixes: tuple[int, ...]
    mixed_batches: tuple[int, ...]
    mixed_contexts: tuple[int, ...]
    mixed_lengths: tuple[int, ...]
    window_s: float

    def repeats(self, length: int) -> int:
        """How often a prefill of `length` tokens is measured."""
        return next(times for most, times in self.prefill_repeats if length <= most)

    def decode_cells(self, kv_tokens: int, max_num_seqs: int) -> Iterator[tuple[int, int]]:
        """(batch, context) that fit whole, short contexts first, batches growing: prompts are shared upwards."""
        for context in self.contexts:
            for batch in self.batches:
                if batch <= max_num_seqs and fits(batch, context + self.decode_tokens, kv_tokens):
                    yield batch, context

    def mixed_cells(self, kv_tokens: int, max_num_seqs: int) -> Iterator[tuple[int, int]]:
        """(batch, context), long contexts first: the phase before left their prompts in the prefix cache."""
        longest = max(self.mixed_lengths)
        for context in sorted(self.mixed_contexts, reverse=True):
            for batch in self.mixed_batches:
                # One more request than `batch`, for the prefill that runs beside it.
                if batch < max_num_seqs and fits(batch, context + 256, kv_tokens - longest):
                    yield batch, context


FULL: Final = Plan(
    prefill_lengths=(64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    prefill_repeats=((2048, 9), (8192, 5), (32768, 3)),
    prefill_batches=((4, 2048), (16, 2048), (64, 1024)),
    batches=(1, 2, 4, 8, 16, 32, 64, 96, 128),
    contexts=(128, 2048, 8192),
    decode_tokens=100,
    alone_lengths=(16, 64, 128, 192, 224, 256, 257, 320, 512, 1024, 2048),
    warm_prefixes=(1024, 8192, 32000),
    mixed_batches=(8, 32, 64),
    mixed_contexts=(2048, 8192),
    mixed_lengths=(16, 64, 128, 192, 224, 256, 320, 512, 1024, 2048),
    window_s=0.6,
)
SMALL: Final = Plan(
    prefill_lengths=(64, 512, 3072),
    prefill_repeats=((4096, 3),),
    prefill_batches=((4, 512),),
    batches=(1, 4, 16),
    contexts=(128, 1024),
    decode_tokens=40,
    alone_lengths=(16, 256),
    warm_prefixes=(1024,),
    mixed_batches=(4,),
    mixed_contexts=(256,),
    mixed_lengths=(16, 256),
    window_s=0.3,
)
PLANS: Final = {"full": FULL, "small": SMALL}


def fits(batch: int, tokens: int, kv_tokens: int, block_tokens: int = 16) -> bool:
    """Whether `batch` requests of so many tokens, in whole blocks, leave 3 % of the KV cache free."""
    blocks = -(-tokens // block_tokens)
    return batch * blocks * block_tokens <= 0.97 * kv_tokens


def parse_phases(text: str) -> tuple[str, ...]:
    """`decode,mixed` as names in the order in which phases run; UserError for anything else."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    for name in named:
        if name not in PHASES:
            raise UserError(f"--phases {text}: no phase '{name}'; choose from {', '.join(PHASES)}")
    if not named:
        raise UserError(f"--phases: empty; choose from {', '.join(PHASES)}")
    return tuple(phase for phase in PHASES if phase in named)
