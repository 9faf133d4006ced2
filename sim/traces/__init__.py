"""Recorded traces of one real engine, and their replay on a simulated one.

`records` reads what was recorded, `client` plays its exogenous part (prompts, output lengths, waits of the client)
against an engine of `sim.engine`, `scores` compares what came out. No policy and no controller take part: a trace of
one engine tests the engine model and its costs alone. `sim.validate` compares whole runs.
"""
