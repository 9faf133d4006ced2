"""KV blocks of the skipping engine as numbers and extents, O(1) per chain of a path.

A chain's resident blocks are always [0, resident), and each running request references a leading range of
them (`sim.engine.base`, "Who may add to a chain"). So a chain needs only the ends of these ranges; what nobody
references is [top, resident), and it lies in the LRU as extents, one for each release that left something
unreferenced. A later release of the same chain lies lower in the chain and is evicted later: within a chain,
`extents` runs from high and old to low and new, without gaps.
"""

from collections import OrderedDict
from typing import Any


class Extent:
    """Blocks [low, high) of a chain that became unreferenced in one release."""

    __slots__ = ("chain", "high", "low")

    def __init__(self, chain: "Chain", low: int, high: int) -> None:
        self.chain = chain
        self.low = low
        self.high = high


class Chain:
    """A chain's blocks on one replica."""

    __slots__ = ("chain_id", "extents", "generation", "references", "resident", "top", "writer")

    def __init__(self, chain_id: int, generation: int) -> None:
        self.chain_id = chain_id
        self.generation = generation
        self.resident = 0  # while a writer is on it: as of its admission; it alone knows more
        self.top = 0  # highest end of a referenced range, the writer's aside
        self.references: dict[int, int] = {}  # end of range -> how many requests, the writer aside
        self.extents: list[Extent] = []
        self.writer: Any = None  # the running request that adds to it


class BlockPool:
    """Counts of a replica's blocks, and its chains. Referenced blocks = total - free - evictable."""

    __slots__ = ("chains", "evictable", "free", "generation", "lru")

    def __init__(self, num_blocks: int) -> None:
        self.free = num_blocks
        self.evictable = 0
        self.generation = 0
        self.chains: dict[int, Chain] = {}
        self.lru: OrderedDict[Extent, None] = OrderedDict()  # next victim first

    def chain(self, chain_id: int) -> Chain:
        """The chain, new if need be."""
        chain = self.chains.get(chain_id)
        if chain is None:
            chain = self.chains[chain_id] = Chain(chain_id, self.generation)
        return chain

    def take(self, count: int) -> None:
        """Take blocks for new tokens: free ones first, then the oldest extents from their high end."""
        free = self.free - count
        if free >= 0:
            self.free = free
            return
        self.free = 0
        lacking = -free
        self.evictable -= lacking
        lru = self.lru
        while lacking:
            extent = next(iter(lru))
            chain = extent.chain
            length = extent.high - extent.low
            if length > lacking:
                extent.high -= lacking
                chain.resident = extent.high
                return
            lacking -= length
            del lru[extent]
            del chain.extents[0]
            chain.resident = extent.low
            if not extent.low:
                del self.chains[chain.chain_id]

    def reference(self, chain: Chain, end: int) -> None:
        """One more running request references [0, end)."""
        if end > chain.top:
            if chain.writer is None:
                extents = chain.extents
                self.evictable -= end - chain.top
                while extents:
                    extent = extents[-1]
                    if extent.high > end:
                        extent.low = end
                        break
                    extents.pop()
                    del self.lru[extent]
            chain.top = end
        references = chain.references
        references[end] = references.get(end, 0) + 1

    def release(self, chain: Chain, end: int) -> None:
        """One running request less references [0, end)."""
        references = chain.references
        count = references[end] - 1
        if count:
            references[end] = count
            return
        del references[end]
        if end == chain.top:
            chain.top = top = max(references) if references else 0
            if chain.writer is None:
                self._unreferenced(chain, top, end)

    def claim(self, chain: Chain, start: int, writer: Any) -> None:
        """`writer`, which references [0, start) >= all others, adds from there on; other blocks are forgotten."""
        if chain.extents:
            for extent in chain.extents:
                del self.lru[extent]
            chain.extents.clear()
            self.evictable -= chain.resident - chain.top
            self.free += chain.resident - start
        chain.resident = start
        chain.writer = writer

    def settle_claim(self, chain: Chain, end: int) -> None:
        """The writer has added all that it will: it becomes an ordinary user of [0, end)."""
        chain.writer = None
        chain.resident = end
        chain.references[end] = chain.references.get(end, 0) + 1
        if end > chain.top:
            chain.top = end

    def release_claim(self, chain: Chain, end: int) -> None:
        """The writer leaves, having filled [0, end)."""
        chain.writer = None
        chain.resident = end
        self._unreferenced(chain, chain.top, end)

    def _unreferenced(self, chain: Chain, low: int, high: int) -> None:
        if chain.generation != self.generation:
            self.free += high - low
            chain.resident = low
        elif high > low:
            extent = Extent(chain, low, high)
            chain.extents.append(extent)
            self.lru[extent] = None
            self.evictable += high - low
        elif not high:
            del self.chains[chain.chain_id]

    def forget_all(self) -> None:
        """No block of now can be hit any more; referenced ones go to the free list at their release."""
        self.free += self.evictable
        self.evictable = 0
        self.lru.clear()
        self.chains = {}
        self.generation += 1

    def check(self) -> None:
        """Recount the extents; AssertionError if a total is wrong."""
        assert self.free >= 0
        assert sum([extent.high - extent.low for extent in self.lru]) == self.evictable
        assert sum([len(chain.extents) for chain in self.chains.values()]) == len(self.lru)
        for chain in self.chains.values():
            assert chain.generation == self.generation
            assert chain.top == max(chain.references, default=0)
            edge = chain.top
            for extent in reversed(chain.extents):
                assert extent.chain is chain
                assert extent.low == edge < extent.high
                edge = extent.high
            assert chain.writer is not None or edge == chain.resident
            assert chain.writer is None or not chain.extents
