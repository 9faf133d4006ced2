"""A request's state on the reference engine."""

from sim.engine.base import Request
from sim.engine.reference_blocks import Block
from sim.engine.shell import Sequence

Segment = tuple[int, int, int | None]
"""Part of a context: chain, first block, block after the last (None: open)."""


def segments_of(request: Request) -> list[Segment]:
    """Where the chains of a request's path lie in its context, in blocks."""
    segments: list[Segment] = []
    start = 0
    for place, (chain, count) in enumerate(request.path):
        is_open = place == len(request.path) - 1
        segments.append((chain, start, None if is_open else start + count))
        start += count
    return segments


class ReferenceSequence(Sequence):
    """A request's tokens and blocks."""

    __slots__ = (
        "blocks",
        "computed",
        "decoding",
        "emitted_versions",
        "end_computed",
        "generation",
        "known",
        "lost",
        "num_hits",
        "private_from",
        "segments",
    )

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.known = request.prompt_tokens  # tokens of its context when it was last queued: prompt + emitted
        self.computed = 0  # tokens with KV; while it decodes, its context has one more
        self.end_computed = request.prompt_tokens + request.output_tokens - 1  # `computed` at its end
        self.decoding = False
        self.num_hits = 0  # blocks found resident at its admission
        self.emitted_versions = 0
        self.lost = 0  # tokens that had KV before the latest preemption
        self.blocks: list[Block] = []
        self.segments = segments_of(request)
        self.private_from = 0  # first block that is never entered in the hash table
        self.generation = -1  # cache generation of its admission
