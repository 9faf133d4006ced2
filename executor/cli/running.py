"""`run`: one experiment on real engines and a real trainer."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from executor.cli.checking import PACKAGES
from executor.cli.loading import load, show_config
from executor.driver import ExecutorDriver
from executor.plan import RunPlan, make_plan
from executor.preflight import check_machine
from executor.run import Host, Outcome, execute
from executor.run_folder import RunFolder
from libra import compiled
from libra.core.ids import EndReason
from libra.core.invariants import InvariantViolation
from libra.errors import PolicyError, UserError
from libra.host import HostClock, code_hash, git_state
from libra.policies.failure import breach
from libra.record.manifest import RECORDED_PACKAGES, RunInfo, package_versions

SOURCES = ("libra", "executor")
"""Packages whose sources a real result depends on."""
_GOOD = (EndReason.STEPS_DONE, EndReason.COMPLETED)
_WHY = {
    EndReason.STALLED: "nothing is under way and no policy moves on what is left; are all engines lost? See the logs",
    EndReason.TIME_LIMIT: "cut off at executor.max_run_s; the same command goes on after the newest checkpoint",
}


def run(args: argparse.Namespace) -> int:
    """Run, or go on with, an experiment. Exit status 0 only where all its steps are done."""
    resolved = load(args)
    if args.show_config:
        return show_config(resolved)
    plan = make_plan(resolved)
    check_machine(plan)
    root = args.out or Path("runs") / f"{resolved.experiment.name}-real"
    folder = RunFolder.open(root, resolved.tree(), resolved.policy_hashes(), fresh=args.fresh)
    try:
        outcome = asyncio.run(_main(plan, folder))
    finally:
        folder.close()
    return _tell(outcome, folder)


async def _main(plan: RunPlan, folder: RunFolder) -> Outcome:
    """Run until done or until a signal asks for the end; a second signal is not waited for."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    drivers: list[ExecutorDriver] = []
    asked = False

    def on_signal() -> None:
        nonlocal asked
        if drivers and not asked:
            drivers[0].stop(EndReason.INTERRUPTED)
        elif main is not None:
            main.cancel()
        asked = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        return await execute(plan, folder, _host(plan), _say, drivers.append)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _host(plan: RunPlan) -> Host:
    clock = HostClock()
    commit, dirty = git_state(SOURCES)
    packages = package_versions((*RECORDED_PACKAGES, *PACKAGES))

    def info(reason: EndReason, notes: tuple[str, ...]) -> RunInfo:
        return RunInfo(
            world="executor",
            config=plan.resolved.tree(),
            seed=plan.resolved.experiment.seed,
            exit_reason=reason,
            commit=commit,
            dirty=dirty,
            policies=plan.resolved.policy_hashes(),
            packages=packages,
            code_hash=code_hash(SOURCES),
            compiled=compiled.in_use,
            notes=notes,
        )

    return Host(info, clock.info)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell(outcome: Outcome, folder: RunFolder) -> int:
    for name in (
        "makespan_s",
        "num_train_steps",
        "train_tokens_per_s",
        "output_tokens_per_s",
        "staleness_mean",
    ):
        if name in outcome.figures:
            print(f"{name:32s} {outcome.figures[name]:16,.4g}")
    _say(f"{outcome.reason}; record in {outcome.attempt}, steps in {folder.steps}")
    if isinstance(outcome.error, InvariantViolation):
        _say(f"error: {breach(outcome.error)}")
    elif isinstance(outcome.error, UserError | PolicyError):
        _say(f"error: {outcome.error}")
    elif outcome.error is not None:
        raise outcome.error
    if outcome.reason is EndReason.INTERRUPTED:
        _say("interrupted; the same command goes on after the newest checkpoint")
        return 130
    if outcome.reason in _WHY:
        _say(f"error: {_WHY[outcome.reason]}")
    return 0 if outcome.reason in _GOOD and outcome.error is None else 1
