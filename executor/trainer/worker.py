"""One rank of the trainer as a program: `RANK=N python -m executor.trainer.worker SPEC.json`.

Guarantees: importing it costs nothing and starts nothing. Megatron's checkpoint writer starts helper processes that
import the main module anew: they must not become trainers, nor load torch for seconds before they help.
"""

import sys

if __name__ == "__main__":
    from executor.trainer.rank import main

    sys.exit(main(sys.argv[1:]))
