"""Real vLLM engines: their processes, their HTTP interface, and the `RolloutEngines` port over them."""
