"""What a person sees of a real run: the status line, and the last words of the command."""

import asyncio
import io
import os
import signal
from types import SimpleNamespace

import pytest

from executor.cli import running
from executor.run import Outcome
from executor.status import Status
from executor.world.trainer import StepLog
from libra.core import events as ev
from libra.core.ids import EndReason, Place
from libra.core.invariants import InvariantViolation
from libra.core.step import Step
from libra.errors import PolicyError, UserError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def view():
    replica = SimpleNamespace(replica_id=0, num_turns=3, status="ready")
    lost = SimpleNamespace(replica_id=1, num_turns=0, status="lost")
    return SimpleNamespace(
        trainer=SimpleNamespace(version=4),
        count=lambda place: {Place.READY: 2, Place.IN_TOOL: 1}[place],
        complete_groups={1: 1},
        replicas={0: replica, 1: lost},
    )


def turn(now_s, tokens):
    event = ev.TurnFinished(0, 0, 0, 0, 5, tokens, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "end", "")
    return Step(0, now_s, event, 0, ())


LOG = StepLog(4, [1], 0.25, 0.1, 8, 2, 10.0, 12.5, 0.5, 4.0, {})
LINE = (
    "   20.0 s | step 4/30 | reward 0.250 | train 2.5 s | staleness 0.5 | 30 tokens/s | "
    "queue 2, tools 1, complete groups 1"
)


def test_elsewhere_there_is_a_line_a_step():
    out = io.StringIO()
    status = Status(view(), 30, out)
    for now_s, tokens in ((1.0, 999), (11.0, 100), (19.0, 200)):
        status.on_step(turn(now_s, tokens))
    assert out.getvalue() == ""
    status.on_train_step(LOG)
    assert out.getvalue().startswith("   12.5 s | step 4/30")
    assert status.line(20.0) == f"{LINE} | engines 0:3 1:0(lost)"
    status.say("a word")
    status.close()
    assert out.getvalue().endswith("a word\n")


def test_on_a_terminal_one_line_is_rewritten_at_most_once_a_second():
    out = Terminal()
    status = Status(view(), 30, out)
    for now_s in (0.0, 0.5, 0.9, 1.0):
        status.on_step(turn(now_s, 1))
    assert out.getvalue().count("\r") == 2
    assert "\n" not in out.getvalue()
    status.say("a word")
    assert out.getvalue().endswith("\ra word\n")


@pytest.mark.parametrize(
    ("reason", "error", "code", "text"),
    [
        (EndReason.STEPS_DONE, None, 0, "steps_done; record in attempt"),
        (EndReason.COMPLETED, None, 0, "completed"),
        (EndReason.COMPLETED, UserError("no train step was made"), 1, "error: no train step was made"),
        (EndReason.FAILED, UserError("the trainer died"), 1, "error: the trainer died"),
        (EndReason.FAILED, PolicyError("policy x failed"), 1, "error: policy x failed"),
        (
            EndReason.FAILED,
            InvariantViolation(4, "no such version"),
            1,
            "error: invariant I4: no such version",
        ),
        (EndReason.INTERRUPTED, None, 130, "the same command goes on after the newest checkpoint"),
        (EndReason.STALLED, None, 1, "nothing is under way and no policy moves on what is left"),
        (EndReason.TIME_LIMIT, None, 1, "cut off at executor.max_run_s"),
    ],
)
def test_the_last_words_and_the_exit_status(capsys, reason, error, code, text):
    outcome = Outcome(reason, {"makespan_s": 2.0}, "attempt", error)
    assert running._tell(outcome, SimpleNamespace(steps="steps.jsonl")) == code
    out, err = capsys.readouterr()
    assert out.split() == ["makespan_s", "2"]
    assert text in err


def test_a_defect_of_the_program_shows_its_traceback(capsys):
    outcome = Outcome(EndReason.FAILED, {}, "attempt", ValueError("a defect"))
    with pytest.raises(ValueError, match="a defect"):
        running._tell(outcome, SimpleNamespace(steps="steps.jsonl"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["starting", "running", "twice"])
def test_a_signal_ends_a_run_in_order_and_a_second_one_at_once(monkeypatch, number, when):
    told = []

    async def execute(plan, folder, host, say, on_driver):
        if when != "starting":
            on_driver(SimpleNamespace(stop=told.append))
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if when == "twice":
                os.kill(os.getpid(), number)
            await asyncio.sleep(0.05 if when == "running" else 30.0)
        finally:
            told.append("cleaned up")
        return "outcome"

    monkeypatch.setattr(running, "execute", execute)
    monkeypatch.setattr(running, "_host", lambda plan: None)
    if when == "running":
        assert asyncio.run(running._main(None, None)) == "outcome"
        assert told == [EndReason.INTERRUPTED, "cleaned up"]
        return
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(running._main(None, None))
    assert told == [*([EndReason.INTERRUPTED] if when == "twice" else []), "cleaned up"]
