"""Decision replay: a recorded run's events, fed to a fresh controller, must give the recorded actions.

It holds for simulated and for real runs, because a policy has nothing but events, view and its seeded
generator to go by. Where it does not hold, something leaked into a decision (time, set order, an outside
state) or the record was changed; either way the first sequence number that differs is named.
"""

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from libra.config.document import Document
from libra.config.resolve import resolve
from libra.core.invariants import InvariantViolation
from libra.core.step import Step
from libra.errors import PolicyError, UserError
from libra.policies.failure import breach
from libra.record.reader import Run
from sim.attempts import attempts_of
from sim.config import SimConfig


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """num_events, num_actions: compared. difference: empty, or what differs first, with its sequence number."""

    num_events: int
    num_actions: int
    difference: str = ""


def replay(directory: Path) -> ReplayResult:
    """Replay one run. Raises UserError when it cannot be read or was not recorded in full.

    Whatever else a record leads to, be it changed by hand or made by another policy, is a difference.
    """
    run = Run.open(directory)
    try:
        tampered = run.verify()
        if tampered:
            return ReplayResult(0, 0, tampered)
        blocks = {"sim": SimConfig} if "sim" in run.config else {}
        resolved = resolve(Document(dict(run.config), {}, directory), blocks)
        hashes = resolved.policy_hashes()
        changed = [role for role, known in run.policies.items() if hashes.get(role) != known]
        controller = resolved.build_controller()
    except UserError:
        raise
    except PolicyError as error:
        return ReplayResult(0, 0, str(error))
    except Exception as error:  # a manifest or a table that says something no program wrote
        raise UserError(f"{directory}: damaged ({_one_line(error)}); run it again") from error
    note = f" (the source of the {', '.join(changed)} policy has changed since)" if changed else ""
    num_events = num_actions = 0
    steps = run.steps()
    while True:
        try:
            recorded = next(steps, None)
        except UserError:
            raise
        except Exception as error:
            what = f"seq {num_events}: the record cannot be read ({_one_line(error)}){note}"
            return ReplayResult(num_events, num_actions, what)
        if recorded is None:
            return ReplayResult(num_events, num_actions)
        try:
            difference = _difference(recorded, controller.handle(recorded.now_s, recorded.event))
        except Exception as error:  # of a policy, an invariant, or an event that fits nothing
            difference = _one_line(error)
        if difference:
            return ReplayResult(num_events, num_actions, f"seq {recorded.seq}: {difference}{note}")
        num_events += 1
        num_actions += len(recorded.actions)


def _difference(recorded: Step, replayed: Step) -> str:
    """What differs between two steps, the first action that does by its number; empty if nothing."""
    if (recorded.seq, recorded.first_action_id) != (replayed.seq, replayed.first_action_id):
        return (
            f"numbering differs: recorded as seq {recorded.seq} from action {recorded.first_action_id} on, "
            f"replayed as seq {replayed.seq} from action {replayed.first_action_id} on"
        )
    pairs = zip_longest(recorded.actions, replayed.actions)
    for action_id, (was, becomes) in enumerate(pairs, recorded.first_action_id):
        if was != becomes:
            return f"action {action_id}: recorded {was or 'nothing'}, replayed {becomes or 'nothing'}"
    return ""


def _one_line(error: Exception) -> str:
    if isinstance(error, (InvariantViolation, PolicyError)):
        return breach(error) if isinstance(error, InvariantViolation) else str(error)
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def runs_below(directory: Path) -> list[Path]:
    """The run itself, all recorded attempts at a real run, or all finished cells of a sweep.

    Raises UserError when it is none of them.
    """
    if (directory / "manifest.json").is_file():
        return [directory]
    attempts = attempts_of(directory)
    if attempts:
        return attempts
    found = sorted(path.parent for path in (directory / "cells").glob("[!.]*/manifest.json"))
    if not found:
        raise UserError(
            f"{directory}: neither a run directory nor a sweep with finished cells; give one of them"
        )
    return found
