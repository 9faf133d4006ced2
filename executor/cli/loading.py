"""From the command line's arguments to a validated experiment."""

import argparse

from executor.plan import resolve_for_executor
from libra.config.document import apply_sets, load_document
from libra.config.resolve import Resolved


def load(args: argparse.Namespace) -> Resolved:
    """The experiment with the command line's overrides. A `sweep:` block is left alone. Raises UserError."""
    document = load_document(args.experiment)
    sets = list(args.sets)
    if args.launcher:
        sets.append(f"executor.launcher={args.launcher}")
    apply_sets(document, sets)
    document.tree.pop("sweep", None)
    return resolve_for_executor(document)


def show_config(resolved: Resolved) -> int:
    """Print every value and where it came from."""
    print(resolved.shown())
    return 0
