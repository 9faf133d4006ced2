"""A request's state on the skipping engine."""

from sim.engine.base import Request
from sim.engine.blocks import Chain
from sim.engine.shell import Sequence


class SkipSequence(Sequence):
    """A request's tokens and block ranges; while it decodes, both follow from the engine's iteration."""

    __slots__ = (
        "begin",
        "claims",
        "computed",
        "decoding",
        "finish",
        "held",
        "known",
        "lost",
        "num_hits",
        "phase",
        "private_from",
        "ranges",
        "version_base",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.running = False
        self.aborted = False
        self.visible_t = -1
        self.admit_no = -1
        self.known = request.prompt_tokens  # tokens of its context at the latest admission
        self.computed = 0  # tokens with KV: now, or when it began to decode
        self.lost = 0  # tokens that had KV before the latest preemption
        self.decoding = False
        self.begin = 0  # first iteration in which it decodes
        self.finish = 0  # iteration before which it has all its tokens
        self.phase = 0  # needs a block in iterations congruent to it
        self.version_base = 0
        self.num_hits = 0  # blocks found resident at its admission
        self.private_from: int | None = None  # first block that can never be hit; None: no such block
        self.ranges: list[tuple[Chain, int]] = []  # (chain, end) referenced, in the order of the path
        self.claims: list[tuple[Chain, int, int | None]] = []  # (chain, its first block, end) to add to
