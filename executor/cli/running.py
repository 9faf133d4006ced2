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
from executor.run import Host, Outcome, execute
from executor.run_folder import RunFolder
from libra.core.ids import EndReason
from libra.errors import UserError
from libra.host import HostClock, code_hash, git_state
from libra.record.manifest import RECORDED_PACKAGES, RunInfo, package_versions

SOURCES = ("libra", "executor")
"""Packages whose sources a real result depends on."""
_GOOD = (EndReason.STEPS_DONE, EndReason.COMPLETED)


def run(args: argparse.Namespace) -> int:
    """Run, or go on with, an experiment. Exit status 0 only where all its steps are done."""
    resolved = load(args)
    if args.show_config:
        return show_config(resolved)
    plan = make_plan(resolved)
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

    def on_signal() -> None:
        if drivers:
            drivers[0].stop(EndReason.INTERRUPTED)
        elif main is not None:
            main.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        return await execute(plan, folder, _host(plan), _say, drivers.append)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except BaseExceptionGroup as group:  # of a start-up: the first that a person can mend
        raise _first_user_error(group) from group


def _first_user_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found = group.subgroup(UserError)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found or group


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
    if isinstance(outcome.error, UserError):
        _say(f"error: {outcome.error}")
    elif outcome.error is not None:
        raise outcome.error
    if outcome.reason is EndReason.INTERRUPTED:
        _say("interrupted; the same command goes on after the newest checkpoint")
        return 130
    return 0 if outcome.reason in _GOOD else 1
