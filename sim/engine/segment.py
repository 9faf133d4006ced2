"""How far a segment of equal batches gets: in a span of time, and with the blocks at hand."""

from math import sqrt


def steps_within(alpha: int, beta: int, span: int) -> int:
    """Largest j with alpha * j + beta * j * (j - 1) / 2 <= span: how many steps have ended after `span` ticks.

    Needs alpha >= beta >= 0 and alpha > 0, as any segment has (its context is at least its batch). The root is
    guessed in floats, then made exact.
    """
    slope = alpha - 0.5 * beta
    j = int(2 * span / (slope + sqrt(slope * slope + 2.0 * beta * span)))
    while alpha * j + beta * (j * (j - 1) // 2) > span:
        j -= 1
    while alpha * (j + 1) + beta * (j * (j + 1) // 2) <= span:
        j += 1
    return j


def steps_until_blocks_lack(growth: list[int], iteration: int, batch: int, available: int, steps: int) -> int:
    """The most steps, up to `steps`, that `available` blocks allow after the one scheduled at `iteration`.

    `growth[i % block_size]` of the `batch` sequences need a block when iteration i is scheduled (the list holds the
    cycle twice).
    """
    block_size = len(growth) // 2
    cycles = available // batch
    left = available - batch * cycles
    bound = 1 + cycles * block_size
    while bound < steps:
        left -= growth[(iteration + bound) % block_size]
        if left < 0:
            return bound
        bound += 1
    return steps
