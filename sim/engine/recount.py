"""Recount of the skipping engine's running totals from its sequences: what keeps the closed forms honest."""

from sim.engine.admission import Admission
from sim.engine.blocks import Chain


def recount(engine: Admission, in_flight: bool) -> None:
    """AssertionError if a total is wrong; `in_flight`: the blocks of the next token are taken already."""
    block_size = engine._block_size
    engine._pool.check()
    decoding = [seq for seq in engine._running.values() if seq.decoding]
    computed = [seq.computed + engine._iteration - seq.begin for seq in decoding]
    assert len(decoding) == engine._num_decoding
    assert sum(computed) == engine._context
    growth = [0] * block_size
    for tokens in computed:
        growth[(engine._iteration - tokens) % block_size] += 1
    assert growth * 2 == engine._growth
    after = {seq.admit_no: tokens + in_flight for seq, tokens in zip(decoding, computed, strict=True)}
    after |= {seq.admit_no: seq.computed + chunk for seq, chunk in engine._prefilling}
    users: dict[Chain, list[int]] = {}
    used = 0
    for seq in engine._running.values():
        tokens = after.get(seq.admit_no, seq.computed)
        shared = max(tokens // block_size, seq.num_hits)
        held = max(-(-tokens // block_size), shared)
        if seq.private_from is not None:
            shared = min(shared, seq.private_from)
        used += held - shared
        for chain, end in seq.ranges:
            users.setdefault(chain, []).append(end)
        for chain, start, end in seq.claims:
            assert chain.writer is seq
            users.setdefault(chain, []).append(max(min(shared, end or shared) - start, 0))
    used += sum(max(ends) for ends in users.values())
    assert used == engine._spec.num_blocks - engine._pool.free - engine._pool.evictable
