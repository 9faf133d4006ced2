"""Episodes in their environments: what is heard of them, and what is not any more."""

import asyncio
from types import SimpleNamespace

import pytest

from executor.engines.wire import GenerateResult, VersionSpan
from executor.environments.arithmetic import Arithmetic, ArithmeticConfig
from executor.environments.chat import ChatTokens
from executor.episodes import Episode, EpisodeStore, SamplingConfig
from executor.progress import Progress
from executor.world.environment import RealEnvironment
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import ActionId, DropReason, NextStep, ToolStatus
from tests.support.fake_run import STOP, ByteTokenizer
from tests.support.talk import Talk, TalkConfig
from tests.support.virtual_time import VirtualLoop


class Place:
    """The port with one trajectory (number 4, of group 1), on a loop whose time jumps."""

    def __init__(self, environment=None, *, max_model_len=100, tool_timeout_s=10.0, **talk) -> None:
        self.loop = VirtualLoop()
        self.events, self.errors = [], []
        self.store = EpisodeStore(
            SamplingConfig(max_new_tokens=20), max_model_len=max_model_len, seed=0, stop_token_ids=(STOP,)
        )
        self.progress = Progress()
        self.port = RealEnvironment(
            environment or Talk(TalkConfig(**talk)),
            ChatTokens(ByteTokenizer(), (STOP,)),
            self.store,
            self.progress,
            self.events.append,
            self._spawn,
            SimpleNamespace(now_s=self.loop.time),
            seed=0,
            tool_timeout_s=tool_timeout_s,
        )
        self.episode = Episode(4, 1, 0, self.port._environment.tasks[0])
        self.port.open(self.episode)
        self.store.add(self.episode)

    def _spawn(self, work, name):
        task = self.loop.create_task(work, name=name)
        task.add_done_callback(
            lambda t: self.errors.append(t.exception()) if not t.cancelled() and t.exception() else 0
        )
        return task

    def say(self, *tokens, turn=0):
        """The engine has generated a whole turn; what the environment makes of it."""
        result = GenerateResult(tokens, (-1.0,) * len(tokens), "stop", (VersionSpan(3, 0, len(tokens)),))
        outcome = self.port.on_turn_end(4, turn, result)
        self.port.after_turn(4, turn)
        return outcome

    def run(self, seconds=60.0):
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def drop(self, trajectory=4):
        self.port.drop(act.DropTrajectory(trajectory, DropReason.STALE, ""))


@pytest.fixture
def make():
    made = []

    def place(*args, **settings):
        made.append(Place(*args, **settings))
        return made[-1]

    yield place
    for each in made:
        for task in asyncio.all_tasks(each.loop):
            task.cancel()
        each.run(0.0)
        each.loop.close()


def test_a_start_is_answered_at_once(make):
    place = make()
    place.port.start(ActionId(3), act.StartTrajectory(4, ""))
    assert place.events == [ev.TrajectoryStarted(3, 4)]
    assert bytes(place.episode.tokens) == b"prompt 0:"


def test_turns_alternate_with_tools_and_the_episode_ends_with_its_reward(make):
    place = make(tools=("ok", "bad"))
    outcome = place.say(65, 66, STOP)
    assert (outcome.next_step, outcome.tool_name) == (NextStep.TOOL, "tool")
    place.run()
    assert place.events == [ev.ToolReturned(4, 0, "tool", ToolStatus.SUCCESS, 9, 0.0, 9 + 3 + 9)]
    place.say(67, turn=1)
    place.run()
    assert place.events[1].status is ToolStatus.FAILURE
    assert place.events[1].prompt_tokens == len(place.episode.tokens) == 9 + 3 + 9 + 1 + 9
    assert place.say(68, turn=2).next_step is NextStep.END
    place.run()
    assert place.events[2:] == [ev.TrajectoryFinished(4, 3, place.episode.reward)]
    assert place.episode.finished
    assert place.episode.tokens[9:12] == [65, 66, STOP]
    assert not place.errors


@pytest.mark.parametrize(
    ("tool", "status", "latency_s"), [("hang", ToolStatus.TIMEOUT, 10.0), ("raise", ToolStatus.FAILURE, 0.0)]
)
def test_a_tool_that_hangs_or_breaks_is_a_result(make, tool, status, latency_s):
    place = make(tools=(tool,))
    place.say(65)
    place.run()
    (returned,) = place.events
    assert (returned.status, returned.latency_s) == (status, latency_s)
    assert not place.errors


@pytest.mark.parametrize("stubborn", [False, True])
def test_nothing_is_heard_of_a_trajectory_that_was_dropped_during_its_tool_call(make, stubborn):
    """Also where the tool does not mind being cancelled."""
    place = make(tools=("hang",), stubborn=stubborn)
    place.say(65)
    place.run(1.0)
    place.drop()
    place.run()
    assert place.events == []
    assert not place.errors
    assert 4 not in place.store


@pytest.mark.parametrize("turns", [1, 3])
def test_nothing_is_heard_of_one_that_was_dropped_before_its_task_began(make, turns):
    place = make(num_turns=turns)
    place.say(65)
    place.drop()
    place.run()
    assert (place.events, place.errors) == ([], [])


def test_a_trajectory_may_be_dropped_between_its_turn_and_what_follows(make):
    place = make()
    place.port.on_turn_end(4, 0, GenerateResult((65,), (-1.0,), "stop"))
    place.drop()
    place.port.after_turn(4, 0)
    place.run()
    assert (place.events, place.errors) == ([], [])


def test_a_group_is_done_when_the_last_of_it_was_dropped(make):
    place = make()
    place.store.add(Episode(5, 1, 1, "task"))
    place.drop(4)
    assert not place.progress.is_done(1)
    place.drop(5)
    assert place.progress.is_done(1)
    place.drop(5)  # harmless


def test_what_a_failed_turn_said_stays_and_its_versions_with_it(make):
    place = make()
    place.port.on_turn_failed(4, 0, GenerateResult((65, 66), (-1.0, -2.0), "abort", (VersionSpan(2, 0, 2),)))
    seen = []
    place.episode.state.step = lambda text, tokens: seen.append((text, list(tokens))) or place.fail
    place.fail = (
        Talk(TalkConfig(num_turns=1))
        .reset(place.episode.task, SimpleNamespace(random=lambda: 0.5))
        .step("", ())
    )
    place.say(67, STOP)
    assert seen == [("ABC", [65, 66, 67, STOP])]
    assert place.episode.versions[9:] == [2, 2, 3, 3]
    assert place.episode.logprobs[9:] == [-1.0, -2.0, -1.0, -1.0]


def test_a_full_context_ends_the_episode_instead_of_a_turn_that_is_refused(make):
    place = make(max_model_len=20)
    place.say(65, 66, 67)  # 9 + 3 + 9 of the tool leave no room for a token
    place.run()
    (finished,) = place.events
    assert (type(finished), finished.num_turns, finished.reward) == (ev.TrajectoryFinished, 1, 0.0)
    assert len(place.episode.tokens) == 12
    with_room = make(max_model_len=22)
    with_room.say(65, 66, 67)
    with_room.run()
    assert type(with_room.events[0]) is ev.ToolReturned


def test_allowed_characters_become_token_ids_of_every_turn(make):
    place = make(Arithmetic(ArithmeticConfig(allowed_characters="0123456789+-*")))
    allowed = place.port.prompt_of(4).allowed_token_ids
    assert bytes(token for token in allowed if token < 256) == bytes(sorted(b"0123456789+-*"))
    assert allowed[-1] == STOP


def test_an_environment_that_gives_a_reward_beyond_one_is_a_defect(make):
    place = make(num_turns=1)
    place.episode.state.reward = 1.5
    place.say(65)
    place.run()
    assert [type(error) for error in place.errors] == [ValueError]
