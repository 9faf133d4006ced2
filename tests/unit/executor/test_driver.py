"""The real driver: order of events, ends of every kind, and what a broken part leaves in the record."""

import asyncio
from types import SimpleNamespace

import pytest

from executor.clock import WallClockPort
from executor.driver import ExecutorDriver
from libra.controller import Controller, ControllerConfig
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import ActionId, EndReason, FailureKind, ReplicaId, Supply, WeightVersion
from libra.errors import PolicyError
from libra.ports import Ports
from tests.support.virtual_time import VirtualLoop

READY = ev.ReplicaReady(-1, 0, 1, 0, 0, 1000, 4, 1000)
POLL = ev.MetricsSampled((ReplicaId(0),), (0,), (0,), (0.0,))


class Answers:
    """A policy of a table: what is asked for after which event, once each."""

    def __init__(self, table=(), error_on=None) -> None:
        self.table = dict(table)
        self.error_on = error_on
        self.seen = []

    def on_event(self, now, event, view):
        self.seen.append((now, type(event)))
        if type(event) is self.error_on:
            raise RuntimeError("a defect")
        return self.table.pop(type(event), ())


class Driven:
    """A driver with one policy and ports that note what they are asked for, on a loop whose time jumps."""

    def __init__(self, policy: Answers) -> None:
        self.loop = VirtualLoop()
        self.clock = SimpleNamespace(now_s=self.loop.time)
        self.steps = []
        self.asked = []
        self.handled = []
        controller = Controller(ControllerConfig(True, 2, 4), [policy])
        self.driver = ExecutorDriver(controller, self.clock, self.steps.append, self.handled.append)
        self.answers = {}
        port = SimpleNamespace(
            fetch=self._ask,
            start=self._ask,
            submit=self._ask,
            start_step=self._ask,
            publish=self._ask,
            drop=self._ask,
        )
        self.ports = Ports(port, port, port, port, WallClockPort(self.clock, self.driver.emit))

    def _ask(self, action_id, action) -> None:
        self.asked.append((action_id, type(action)))
        answer = self.answers.get(type(action))
        if answer is not None:
            answer(action_id, action)

    def run(self, beside=None, **limits) -> EndReason:
        async def body():
            task = asyncio.create_task(beside()) if beside else None
            try:
                return await self.driver.run(self.ports, Supply.PULL, WeightVersion(0), **limits)
            finally:
                if task is not None:
                    await task

        try:
            return self.loop.run_until_complete(body())
        finally:
            self.left = asyncio.all_tasks(self.loop)
            self.loop.close()

    @property
    def events(self):
        return [step.event for step in self.steps]


FETCH = act.FetchPrompts(2, "")


def exhausted(driven: Driven):
    return lambda action_id, action: driven.driver.emit(ev.PromptsFetched(action_id, 0, True))


def test_events_are_handled_in_order_and_the_run_completes():
    policy = Answers({ev.RunStarted: (FETCH,)})
    driven = Driven(policy)
    driven.answers[act.FetchPrompts] = exhausted(driven)
    driven.driver.emit(READY)  # it was there before the run began
    assert driven.run() is EndReason.COMPLETED
    assert driven.events == [
        ev.RunStarted(Supply.PULL), READY, ev.PromptsFetched(0, 0, True), ev.RunEnding(EndReason.COMPLETED),
    ]  # fmt: skip
    assert driven.asked == [(0, act.FetchPrompts)]
    assert [step.seq for step in driven.steps] == [0, 1, 2, 3]
    assert driven.handled == driven.steps
    assert not driven.left


def test_a_step_is_recorded_before_its_actions_are_carried_out():
    driven = Driven(Answers({ev.RunStarted: (FETCH,)}))
    seen = []
    driven.answers[act.FetchPrompts] = lambda *_: (seen.append(len(driven.steps)), exhausted(driven)(*_))
    driven.run()
    assert seen == [1]


@pytest.mark.parametrize("reason", [EndReason.INTERRUPTED, EndReason.FAILED])
def test_stop_ends_a_run_that_waits(reason):
    driven = Driven(Answers({ev.RunStarted: (FETCH,)}))

    async def stop():
        await asyncio.sleep(1.0)
        driven.driver.stop(reason)
        driven.driver.stop(EndReason.TIME_LIMIT)  # the first one counts

    assert driven.run(stop) is reason
    assert driven.events[-1] == ev.RunEnding(reason)
    assert driven.steps[-1].now_s == 1.0


def test_a_stop_before_the_run_is_heeded():
    driven = Driven(Answers())
    driven.driver.stop(EndReason.INTERRUPTED)
    assert driven.run() is EndReason.INTERRUPTED
    assert driven.events == [ev.RunEnding(EndReason.INTERRUPTED)]


def test_the_time_limit_is_kept_to_the_moment_also_while_events_come():
    driven = Driven(Answers({ev.RunStarted: (FETCH,)}))

    async def chatter():
        while driven.loop.time() < 20.0:
            await asyncio.sleep(0.25)
            driven.driver.emit(POLL)

    driven.driver.emit(READY)
    assert driven.run(chatter, max_run_s=7.1) is EndReason.TIME_LIMIT
    assert driven.steps[-1].now_s == pytest.approx(7.1)


def test_policies_that_answer_their_own_events_for_ever_do_not_shut_out_signals():
    driven = Driven(Answers())
    number = iter(range(10_000_000))

    class Circle(Answers):
        def on_event(self, now, event, view):
            return (act.SetTimer(f"{next(number)}", now, ""),) if len(driven.steps) < 100_000 else ()

    driven.driver._controller._policies = [Circle()]
    driven.loop.call_later(0.0, driven.driver.stop, EndReason.INTERRUPTED)
    assert driven.run() is EndReason.INTERRUPTED
    assert len(driven.steps) < 1000


def test_a_stall_is_seen_at_the_next_poll_and_a_policy_may_act_on_that():
    """Nothing is under way after the start, but the policy waits for a poll and then asks for prompts."""
    policy = Answers({ev.MetricsSampled: (FETCH,)})
    driven = Driven(policy)

    def fetched(action_id, action):
        driven.driver.emit(ev.TrajectoryArrived(0, 0, 0, 0, 1, 10))
        driven.driver.emit(ev.PromptsFetched(action_id, 1, True))

    driven.answers[act.FetchPrompts] = fetched

    async def polls():
        for _ in range(2):
            await asyncio.sleep(2.0)
            driven.driver.emit(POLL)

    driven.driver.emit(READY)
    assert driven.run(polls) is EndReason.STALLED
    assert driven.steps[-1].now_s == 4.0


def test_a_stall_without_polls_is_seen_after_a_while():
    driven = Driven(Answers())
    assert driven.run() is EndReason.STALLED
    assert driven.steps[-1].now_s == 5.0


def test_a_timer_under_way_is_no_stall():
    policy = Answers({ev.RunStarted: (act.SetTimer("tea", 60.0, ""),), ev.TimerFired: (FETCH,)})
    driven = Driven(policy)
    driven.answers[act.FetchPrompts] = exhausted(driven)
    assert driven.run() is EndReason.COMPLETED
    assert driven.events[1] == ev.TimerFired(0, "tea")
    assert driven.steps[1].now_s == 60.0


def test_a_port_that_raises_ends_the_run_with_a_closed_record():
    driven = Driven(Answers({ev.RunStarted: (FETCH,)}))

    def broken(action_id, action):
        raise ValueError("no such thing")

    driven.answers[act.FetchPrompts] = broken
    with pytest.raises(ValueError, match="no such thing"):
        driven.run()
    assert driven.events == [ev.RunStarted(Supply.PULL), ev.RunEnding(EndReason.FAILED)]


def test_a_task_of_a_port_that_raises_ends_the_run_and_the_other_tasks():
    driven = Driven(Answers({ev.RunStarted: (FETCH,)}))
    cancelled = []

    async def breaks():
        await asyncio.sleep(3.0)
        raise OSError("gone")

    async def goes_on():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(driven.loop.time())
            raise

    def ask(action_id, action):
        driven.driver.spawn(breaks(), "breaks")
        driven.driver.spawn(goes_on(), "goes on")

    driven.answers[act.FetchPrompts] = ask
    with pytest.raises(OSError, match="gone"):
        driven.run()
    assert driven.events[-1] == ev.RunEnding(EndReason.FAILED)
    assert cancelled == [3.0]
    assert not driven.left


def test_what_is_spawned_after_the_end_does_not_run():
    """An engine that is being stopped ends a turn, and its environment would call a tool."""
    driven = Driven(Answers({ev.RunStarted: (FETCH,)}))
    driven.answers[act.FetchPrompts] = exhausted(driven)
    ran = []

    async def work():
        ran.append(1)

    async def body():
        await driven.driver.run(driven.ports, Supply.PULL, WeightVersion(0))
        task = driven.driver.spawn(work(), "late")
        await asyncio.wait({task})
        assert task.cancelled()

    driven.loop.run_until_complete(body())
    driven.loop.close()
    assert not ran


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_policy_that_raises_is_named_and_asked_no_more():
    policy = Answers({ev.RunStarted: (FETCH,)}, error_on=ev.ReplicaReady)
    driven = Driven(policy)
    driven.driver.emit(READY)
    with pytest.raises(PolicyError, match="a defect"):
        driven.run()
    assert driven.events == [ev.RunStarted(Supply.PULL)]  # what it broke on has led to nothing
    assert [kind for _, kind in policy.seen] == [ev.RunStarted, ev.ReplicaReady]


def test_a_broken_invariant_ends_the_run_with_its_number():
    driven = Driven(Answers())
    driven.driver.emit(ev.TrajectoryStarted(ActionId(99), 0))
    with pytest.raises(AssertionError, match="I6"):
        driven.run()
    assert driven.events == [ev.RunStarted(Supply.PULL)]


def test_the_first_error_is_the_one_that_is_raised():
    driven = Driven(Answers())
    driven.driver.fail(ValueError("first"))
    driven.driver.fail(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        driven.run()
    assert driven.events == [ev.RunEnding(EndReason.FAILED)]


def test_a_record_that_cannot_be_written_ends_the_run():
    driven = Driven(Answers())

    def full(step):
        raise OSError("No space left on device")

    driven.driver._record = full
    with pytest.raises(OSError, match="No space left"):
        driven.run()


@pytest.mark.parametrize(
    ("late_s", "kind"), [(0.0, ev.TimerFired), (59.0, ev.TimerFired), (61.0, ev.ActionFailed)]
)
def test_a_timer_that_was_late_on_its_way_still_fires(late_s, kind):
    driven = Driven(Answers())
    found = []
    port = WallClockPort(driven.clock, found.append)

    async def body():
        await asyncio.sleep(100.0)
        port.set_timer(ActionId(7), act.SetTimer("k", 100.0 - late_s, ""))
        await asyncio.sleep(0.1)

    driven.loop.run_until_complete(body())
    driven.loop.close()
    assert [type(event) for event in found] == [kind]
    assert found[0].closes == 7
    if kind is ev.ActionFailed:
        assert found[0].kind is FailureKind.REFUSED
