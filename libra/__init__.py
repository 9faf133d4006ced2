"""Libra: resource management for agentic RL post-training, decided by one code base in simulation and for real.

This package decides and records; it owns no clock and no engine. `libra.controller` is the place to start reading.
"""

# Before any other module: this settles which of them are compiled.
from libra import compiled as compiled
