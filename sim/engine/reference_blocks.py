"""KV blocks of the reference engine, one object each: hash table, reference counts, free list, LRU.

The plain form of what vLLM's block pool does (its LRU, too, is a linked list through the blocks);
`sim.engine.blocks` does the same with extents. The hash table has two levels, chain and index: neighbours of a
chain then lie together, where one table of pairs would miss the CPU's caches at every block.
"""

from collections import Counter


class Block:
    """One KV block."""

    __slots__ = ("chain", "index", "newer", "older", "references")

    def __init__(self) -> None:
        self.chain: int | None = None  # its place in the hash table; None: it is not there
        self.index = -1
        self.references = 0
        self.older: Block = self  # neighbours in the LRU
        self.newer: Block = self


class BlockTable:
    """All blocks of a replica. Every block is on the free list, or in the LRU, or referenced."""

    __slots__ = ("all_blocks", "ends", "free", "num_evictable", "resident")

    def __init__(self, num_blocks: int) -> None:
        self.all_blocks = [Block() for _ in range(num_blocks)]
        self.free = list(self.all_blocks)
        self.resident: dict[int, dict[int, Block]] = {}  # chain -> index -> block
        self.ends = Block()  # of the LRU: `newer` is the next victim, `older` the latest released
        self.num_evictable = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free ones, and those that may be evicted."""
        return len(self.free) + self.num_evictable

    def get(self, chain: int, index: int) -> Block | None:
        """The resident block, if there is one."""
        blocks = self.resident.get(chain)
        return None if blocks is None else blocks.get(index)

    def hit_run(self, chain: int, count: int) -> list[Block]:
        """The resident blocks among the first `count` of a chain, up to the first that is not."""
        blocks = self.resident.get(chain)
        if blocks is None:
            return []
        run = list(map(blocks.get, range(count)))
        if run and run[-1] is None:  # a chain's resident blocks have no gaps
            del run[run.index(None) :]
        return run  # type: ignore[return-value]

    def take(self, count: int, blocks: list[Block]) -> None:
        """Append `count` blocks for new tokens, referenced once; evicts where none is free."""
        for _ in range(count):
            blocks.append(self.take_one())

    def take_one(self) -> Block:
        """A block for new tokens, referenced once; evicts if none is free."""
        if not self.free:
            self.unregister(self.ends.newer)
        block = self.free.pop()
        block.references = 1
        return block

    def reference(self, blocks: list[Block]) -> None:
        """One more user of each block."""
        revived = 0
        for block in blocks:
            if block.references:
                block.references += 1
            else:
                block.references = 1
                revived += 1
                newer, older = block.newer, block.older
                older.newer = newer
                newer.older = older
        self.num_evictable -= revived

    def release(self, blocks: list[Block]) -> None:
        """One user of each block less, last block first."""
        latest = self.ends.older
        retired = 0
        for block in reversed(blocks):
            references = block.references - 1
            block.references = references
            if not references:
                if block.chain is None:
                    self.free.append(block)
                else:
                    retired += 1
                    latest.newer = block
                    block.older = latest
                    latest = block
        self.num_evictable += retired
        latest.newer = self.ends
        self.ends.older = latest

    def register(self, block: Block, chain: int, index: int) -> None:
        """A full block can be hit from now on."""
        blocks = self.resident.get(chain)
        if blocks is None:
            blocks = self.resident[chain] = {}
        assert index not in blocks
        blocks[index] = block
        block.chain = chain
        block.index = index

    def unregister(self, block: Block) -> None:
        """A block can no longer be hit; it goes to the free list when nobody references it."""
        if block.chain is None:
            return
        blocks = self.resident[block.chain]
        del blocks[block.index]
        if not blocks:
            del self.resident[block.chain]
        block.chain = None
        if not block.references:
            self.num_evictable -= 1
            block.older.newer = block.newer
            block.newer.older = block.older
            self.free.append(block)

    def forget_from(self, chain: int, index: int) -> None:
        """Unregister the resident blocks of a chain from `index` on."""
        while (block := self.get(chain, index)) is not None:
            self.unregister(block)
            index += 1

    def forget_all(self) -> None:
        """No block can be hit any more."""
        for blocks in list(self.resident.values()):
            for block in list(blocks.values()):
                self.unregister(block)

    def check(self, references: Counter[Block]) -> None:
        """Every block is in exactly one place, with as many references as its users hold."""
        assert len(set(self.free)) == len(self.free)
        free = set(self.free)
        evictable: set[Block] = set()
        block = self.ends.newer
        while block is not self.ends:
            assert block.newer.older is block
            evictable.add(block)
            block = block.newer
        assert len(evictable) == self.num_evictable
        for block in self.all_blocks:
            assert block.references == references[block]
            assert (block in free) + (block in evictable) + (block.references > 0) == 1
            assert block.chain is None or self.resident[block.chain][block.index] is block
            assert block not in free or block.chain is None
        for blocks in self.resident.values():
            assert set(blocks) == set(range(len(blocks)))  # a chain's resident blocks have no gaps
