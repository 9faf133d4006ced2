"""Decision replay: a recorded run's events, fed to a fresh controller, must give the recorded actions.

It holds for simulated and for real runs, because a policy has nothing but events, view and its seeded
generator to go by. Where it does not hold, something leaked into a decision (time, set order, an outside
state) or the record was changed; either way the first sequence number that differs is named.
"""

from dataclasses import dataclass
from pathlib import Path

from libra.config.document import Document
from libra.config.resolve import resolve
from libra.core.invariants import InvariantViolation
from libra.errors import UserError
from libra.record.reader import Run
from sim.config import SimConfig


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """num_events, num_actions: compared. difference: empty, or what differs first, with its sequence number."""

    num_events: int
    num_actions: int
    difference: str = ""


def replay(directory: Path) -> ReplayResult:
    """Replay one run. Raises UserError when it cannot be read or was not recorded in full."""
    run = Run.open(directory)
    tampered = run.verify()
    if tampered:
        return ReplayResult(0, 0, tampered)
    blocks = {"sim": SimConfig} if "sim" in run.config else {}
    resolved = resolve(Document(dict(run.config), {}, directory), blocks)
    changed = [role for role, known in run.policies.items() if resolved.policy_hashes().get(role) != known]
    note = f" (the source of the {', '.join(changed)} policy has changed since)" if changed else ""
    controller = resolved.build_controller()
    num_events = num_actions = 0
    for recorded in run.steps():
        try:
            step = controller.handle(recorded.now_s, recorded.event)
        except (InvariantViolation, KeyError) as error:
            return ReplayResult(num_events, num_actions, f"seq {recorded.seq}: {error}{note}")
        if step.seq != recorded.seq or step.first_action_id != recorded.first_action_id:
            return ReplayResult(num_events, num_actions, f"seq {recorded.seq}: numbering differs{note}")
        if list(step.actions) != list(recorded.actions):
            return ReplayResult(
                num_events,
                num_actions,
                f"seq {recorded.seq}: recorded {list(recorded.actions)}, replayed {list(step.actions)}{note}",
            )
        num_events += 1
        num_actions += len(step.actions)
    return ReplayResult(num_events, num_actions)


def runs_below(directory: Path) -> list[Path]:
    """The run itself, or all finished cells of a sweep. Raises UserError when it is neither."""
    if (directory / "manifest.json").is_file():
        return [directory]
    found = sorted(path.parent for path in (directory / "cells").glob("[!.]*/manifest.json"))
    if not found:
        raise UserError(
            f"{directory}: neither a run directory nor a sweep with finished cells; give one of them"
        )
    return found
