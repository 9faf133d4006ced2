"""A policy that fails gives one line: which, when, on what, and the line of the policy that raised."""

import inspect

import pytest

from libra.controller import Controller, ControllerConfig
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import Supply
from libra.core.invariants import InvariantViolation
from libra.errors import PolicyError
from libra.policies.failure import breach, described
from tests.support.fake_world import FakeWorld, arrival, controller


class Answers:
    """A policy whose answer is what a function gives."""

    def __init__(self, answer):
        self.answer = answer

    def on_event(self, now, event, view):
        return self.answer()


WAIT = act.SetTimer("k", 9.0, "to wait")


def raises(error):
    raise error


def some_then_raises():
    yield WAIT
    int("x")


def failure_of(policy, debug=False) -> str:
    config = ControllerConfig(training=True, total_steps=1, max_head_offpolicyness=1, debug=debug)
    with pytest.raises(PolicyError) as caught:
        Controller(config, [policy]).handle(0.0, ev.RunStarted(Supply.PULL))
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__cause__ is not None
    return message


FAILURES = {
    "an exception": (lambda: raises(KeyError("a defect")), "KeyError: 'a defect' ("),
    "several lines": (lambda: raises(ValueError("one\ntwo")), "ValueError: one ("),
    "no text": (lambda: raises(RuntimeError()), "RuntimeError ("),
    "an exit": (lambda: raises(SystemExit(0)), "SystemExit: 0 ("),
    "an exit of its own kind": (lambda: raises(GeneratorExit()), "GeneratorExit ("),
    "in the middle of an answer": (some_then_raises, "ValueError: invalid literal for int()"),
    "None": (lambda: None, "it answered with no iterable ('NoneType' object is not iterable); on_event must"),
    "one action": (
        lambda: WAIT,
        "it answered with no iterable ('SetTimer' object is not iterable); on_event",
    ),
    "a text": (lambda: "drop", "its answer holds 'd', which is no action; on_event must return an iterable"),
    "a number among actions": (lambda: [WAIT, 4], "its answer holds 4, which is no action"),
    "nothing among actions": (lambda: [WAIT, None], "its answer holds None, which is no action"),
    "a class of action": (lambda: [act.SetTimer], "its answer holds <class"),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(("answer", "expected"), FAILURES.values(), ids=FAILURES)
def test_one_line_of_what_failed(answer, expected, debug):
    message = failure_of(Answers(answer), debug)
    start = f"policy {__name__}:Answers failed at seq 0, t=0s, on "
    assert message.startswith(start)
    assert message.partition(": ")[2].startswith(expected)


def test_the_line_is_the_policy_s_own_not_that_of_a_library_below_it():
    message = failure_of(Answers(lambda: [__import__("json").loads("x")]))
    line = inspect.getsourcelines(Answers.on_event)[1] + 1
    named = message.rpartition("(")[2]
    assert named.startswith(__file__)
    assert "json" not in named
    assert int(named.rstrip(")").rpartition(":")[2]) > line


def test_an_interrupt_is_nobody_s_failure():
    world = FakeWorld(controller(Answers(lambda: raises(KeyboardInterrupt()))))
    with pytest.raises(KeyboardInterrupt):
        world.send(arrival(0, 0, 2))


def test_a_broken_invariant_keeps_its_text_and_says_who_was_asked():
    world = FakeWorld(controller(Answers(lambda: [act.FetchPrompts(0, "none")])))
    with pytest.raises(InvariantViolation, match=r"^I6: ") as caught:
        world.send(arrival(0, 0, 2))
    text = breach(caught.value)
    assert text.startswith(f"invariant {caught.value} (policy {__name__}:Answers at seq 0, t=0s, on ")


def test_what_was_never_raised_has_no_place():
    assert described(ValueError("x"), "a") == "ValueError: x"
    assert breach(InvariantViolation(3, "x")) == "invariant I3: x"


@pytest.mark.parametrize("ignores", [4, None, "TurnFinished"])
def test_ignores_that_is_no_set(ignores):
    policy = Answers(tuple)
    policy.ignores = ignores
    with pytest.raises(PolicyError, match="Answers: `ignores` must be a frozenset of event types, not "):
        FakeWorld(controller(policy)).send(arrival(0, 0, 2))
