"""Arguments and dispatch. Each verb is a function `(args) -> exit status`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from executor.cli import checking, running
from libra.errors import PolicyError, UserError, refused_by_file_system


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit status."""
    args = _parser().parse_args(argv)
    try:
        return args.verb(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except PolicyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on after the newest checkpoint", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"error: {refused_by_file_system(error)}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m executor",
        description="Train with real engines and trainers, under the policies that the simulator runs.",
        epilog="Start with: python -m executor check experiments/executor_cipher_cpu.yaml",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    run = verbs.add_parser("run", help="run one experiment; goes on where an interrupted one stopped")
    _add_experiment(run)
    run.add_argument("--out", type=Path, help="folder of the run (default: runs/NAME-real)")
    run.add_argument("--fresh", action="store_true", help="remove an existing run in that folder first")
    run.set_defaults(verb=running.run)

    check = verbs.add_parser("check", help="say what would start, and refuse what could not; starts nothing")
    _add_experiment(check)
    check.set_defaults(verb=checking.check)
    return parser


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", type=Path, help="experiment file (*.yaml)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="sets", help="override a value"
    )
    parser.add_argument("--launcher", choices=["local", "static"], help="same as --set executor.launcher=...")
    parser.add_argument(
        "--show-config", action="store_true", help="print every value and where it came from, then stop"
    )
