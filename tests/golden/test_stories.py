"""Readable stories of the controller with the built-in policies: what happens, and what it asks for.

A story is a text file. A line that starts with `>` says what happens next in the world (`Story.COMMANDS`); the
lines below it are everything that the controller heard and, indented further, what it asked for, numbered as
in a record. The whole file is compared exactly. On a mismatch the test shows the story as it went: read it, and
where it is right put it in the place of the old one.
"""

import dataclasses
import difflib
import re
from pathlib import Path

import pytest

from libra.core import actions as act
from libra.core.ids import FailureKind, Place, TrajectoryId
from libra.policies.admission import AdmissionConfig
from libra.policies.load_balance import LoadBalance, LoadBalanceConfig
from libra.policies.recovery import RecoveryConfig
from libra.policies.train_loop import TrainLoopConfig
from tests.support.fake_world import FakeWorld, controller, policies, rng

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))

SETTINGS = {
    "groups": 3,
    "samples": 2,
    "turns": 2,
    "batch": 2,
    "steps": 2,
    "bound": 1,
    "concurrent": 8,
    "cap": 100,
    "partial": "yes",
    "on_stale": "wait",
    "reload": "parallel",
    "prefetch": 2,
}
"""What `> world` may set, and what holds where it says nothing."""

HIDDEN = frozenset(
    {"prompt_id", "sample_index", "group_size", "priority", "cached_tokens", "recomputed_tokens"}
)
HIDDEN |= {
    "num_preemptions",
    "version_last",
    "version_token_sum",
    "started_s",
    "first_token_s",
    "submitted_s",
}
HIDDEN |= {
    "finished_s",
    "failed_s",
    "tool_name",
    "payload_tokens",
    "latency_s",
    "reward",
    "node_id",
    "message",
}
HIDDEN |= {"kv_capacity_tokens", "max_num_seqs", "max_model_len", "reason"}
"""Fields that are the same in all stories, or follow from others."""


class Story:
    """Plays the commands of a file on a small world and writes down what follows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.world: FakeWorld | None = None
        self._shown = 0

    def play(self, line: str) -> None:
        """One command, and what it led to."""
        self.lines.append(line)
        for pattern, method in self.COMMANDS.items():
            match = re.fullmatch(pattern, line.removeprefix("> "))
            if match:
                getattr(self, method)(*match.groups())
                self._show()
                return
        raise AssertionError(f"no command matches {line!r}; there are {', '.join(self.COMMANDS)}")

    COMMANDS = {  # noqa: RUF012 - a constant table
        r"world((?: \w+=\w+)*)": "build",
        r"start with tp (.+)": "start",
        r"prompts are fetched": "fetched",
        r"(\d+) is up": "is_up",
        r"turn of (\d+) finishes": "turn_finishes",
        r"turn of (\d+) fails: (\w+)": "turn_fails",
        r"environment of (\d+) answers": "answers",
        r"trainer finishes its step": "trained",
        r"weights are published": "published",
        r"replica (\d+) has loaded": "loaded",
        r"replica (\d+) is lost": "lost",
        r"replica (\d+) is up": "replica_up",
        r"the timer fires": "timer",
        r"time passes: (\d+) s": "time_passes",
        r"go on until (\w+)": "go_on",
        r"state": "state",
    }

    def build(self, text: str) -> None:
        given = dict(part.split("=") for part in text.split())
        assert given.keys() <= SETTINGS.keys(), given
        s = SETTINGS | {key: int(value) if value.isdigit() else value for key, value in given.items()}
        shared = {
            "batch_size": s["batch"],
            "n_samples": s["samples"],
            "max_head_offpolicyness": s["bound"],
            "partial_rollout": s["partial"] == "yes",
        }
        parts = policies(
            LoadBalance(LoadBalanceConfig(max_queue_length=s["cap"]), rng()),
            AdmissionConfig(
                max_concurrent_rollouts=s["concurrent"], prefetch_trajectories=s["prefetch"], **shared
            ),
            TrainLoopConfig(
                on_stale=s["on_stale"],
                total_steps=s["steps"],
                rollout_weight_reload_strategy=s["reload"],
                **shared,
            ),
            RecoveryConfig(),
        )
        core = controller(*parts, total_steps=s["steps"], bound=s["bound"])
        self.world = FakeWorld(core, num_groups=s["groups"], group_size=s["samples"], turns=s["turns"])

    def start(self, tps: str) -> None:
        self.world.start([int(tp) for tp in tps.split(" and ")])

    def fetched(self) -> None:
        self._end(act.FetchPrompts)

    def is_up(self, trajectory: str) -> None:
        self._end(act.StartTrajectory, trajectory_id=int(trajectory))

    def turn_finishes(self, trajectory: str) -> None:
        self._end(act.SubmitTurn, trajectory_id=int(trajectory))

    def turn_fails(self, trajectory: str, kind: str) -> None:
        self.world.fail_turn(self._find(act.SubmitTurn, trajectory_id=int(trajectory)), FailureKind(kind))

    def answers(self, trajectory: str) -> None:
        self.world.return_tool(TrajectoryId(int(trajectory)))

    def trained(self) -> None:
        self._end(act.StartTrainStep)

    def published(self) -> None:
        self._end(act.PublishWeights)

    def loaded(self, replica: str) -> None:
        self._end(act.LoadWeights, replica_id=int(replica))

    def lost(self, replica: str) -> None:
        self.world.lose(int(replica))

    def replica_up(self, replica: str) -> None:
        self._end(act.StartReplica, replica_id=int(replica))

    def timer(self) -> None:
        self._end(act.SetTimer)

    def time_passes(self, seconds: str) -> None:
        self.world.now += int(seconds)

    def go_on(self, kind: str) -> None:
        """Whatever is pending ends well, oldest first, until an action of this kind is asked for."""
        world = self.world
        while not world.of(getattr(act, kind)):
            if world.pending:
                world.end(next(iter(world.pending)))
            else:
                world.return_tool(next(iter(world.in_tool)))

    def state(self) -> None:
        """Where everything is."""
        view = self.world.controller.view
        counts = [f"{view.count(place)} {place}" for place in Place if view.count(place)]
        self.lines.append(f"  trajectories: {', '.join(counts)}")
        for replica in view.replicas.values():
            self.lines.append(
                f"  replica {replica.replica_id}: {replica.status}, version {replica.weight_version}, "
                f"{replica.num_resident} resident, {replica.num_turns} turns"
            )
        trainer = view.trainer
        self.lines.append(f"  trainer: version {trainer.version}, published {trainer.published_version}")
        reason = self.world.controller.end_reason()
        self.lines.append(f"  end: {reason or 'not yet'}")

    def _find(self, kind: type, **named: int) -> int:
        for action_id, action in self.world.of(kind):
            if all(getattr(action, name) == value for name, value in named.items()):
                return action_id
        raise AssertionError(f"nothing pending is {kind.__name__} {named}: {self.world.pending}")

    def _end(self, kind: type, **named: int) -> None:
        self.world.end(self._find(kind, **named))

    def _show(self) -> None:
        for step in self.world.steps[self._shown :]:
            self.lines.append(f"  {step.now_s:g} s  {shown(step.event)}")
            for action_id, action in enumerate(step.actions, step.first_action_id):
                self.lines.append(f"      #{action_id} {shown(action)} | {action.reason}")
        self._shown = len(self.world.steps)


def shown(item) -> str:
    """An event or action in one line."""
    parts = [type(item).__name__]
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if field.name not in HIDDEN and value != () and not (field.name == "closes" and value < 0):
            name = field.name.removesuffix("_id")
            parts.append(f"closes #{value}" if name == "closes" else f"{name}={value}")
    return " ".join(parts)


def retold(text: str) -> str:
    """The story as it goes today: its comments and commands, with what follows from them."""
    story = Story()
    for line in text.splitlines():
        if line.startswith("> "):
            story.play(line)
        elif not line.startswith("  "):
            story.lines.append(line)
    return "\n".join(story.lines) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=[path.stem for path in STORIES])
def test_story(path):
    expected = path.read_text(encoding="utf-8")
    actual = retold(expected)
    if actual != expected:
        diff = "\n".join(difflib.unified_diff(expected.splitlines(), actual.splitlines(), lineterm="", n=1))
        pytest.fail(
            f"{path.name} went otherwise:\n{diff}\n\nThe story as it went:\n\n{actual}", pytrace=False
        )


def test_there_are_stories():
    assert len(STORIES) >= 8


def test_a_story_that_says_something_else_fails():
    text = "> world\n> start with tp 1\n"
    assert retold(text) != text
    assert retold(retold(text)) == retold(text)
