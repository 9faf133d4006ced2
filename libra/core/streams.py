"""Named random streams.

One seed makes a run. Each consumer draws from its own stream, named by what it is for and, where draws must
not depend on the order of events, by an index (a chunk, a trajectory). Adding a consumer shifts no other
stream, and two policies under one seed meet the same world (common random numbers).
"""

import hashlib

import numpy as np


def stream(seed: int, name: str, *indices: int) -> np.random.Generator:
    """Generator of stream `name` (and indices) under `seed`; the same on every machine and in every process.

    The name enters by SHA-256, not by `hash()`, which differs from process to process.
    """
    digest = hashlib.sha256(name.encode()).digest()
    key = int.from_bytes(digest[:8], "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key, *indices))))
