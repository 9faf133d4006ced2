"""Real engines and trainers behind the same ports; comes with the executor. Nothing here yet."""
