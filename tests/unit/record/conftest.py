"""A small scripted run: enough of every event to fill all tables, with its own clock and no policies."""

import heapq
from collections import Counter
from math import nan

import numpy as np
import pytest

from libra.core import actions as ac
from libra.core import events as ev
from libra.core.ids import NO_ACTION, DropReason, EndReason, FailureKind, NextStep, Supply, ToolStatus
from libra.core.step import Step
from libra.record.manifest import RunInfo


class Story:
    """Groups of trajectories on two replicas, one train step per `groups_per_step` groups.

    One turn in `fail_every` is aborted once and sent again; one trajectory in `drop_every` is dropped while it
    generates. All numbers come from `seed`.
    """

    def __init__(
        self, num_groups=6, group_size=4, num_turns=3, groups_per_step=2, fail_every=7, drop_every=11, seed=0
    ):
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.num_groups, self.group_size, self.num_turns = num_groups, group_size, num_turns
        self.groups_per_step, self.fail_every, self.drop_every = groups_per_step, fail_every, drop_every
        self.heap, self.order, self.next_action = [], 0, 0
        self.version, self.loaded = 0, [0, 0]
        self.context, self.turn, self.submitted, self.pending = {}, {}, {}, {}
        self.complete, self.alive, self.training = [], Counter(), False
        self.count, self.failed, self.next_group = 0, set(), 0

    def at(self, time_s, event):
        heapq.heappush(self.heap, (time_s, self.order, event))
        self.order += 1

    def steps(self):
        """All steps in order."""
        self.at(0.0, ev.RunStarted(Supply.PULL))
        for replica, tp in enumerate((1, 4)):
            self.at(0.0, ev.ReplicaReady(NO_ACTION, replica, tp, 0, 0, 100_000, 64, 40_960))
        for _ in range(min(2 * self.groups_per_step, self.num_groups)):
            self.arrive(0.5)
        seq, now = 0, 0.0
        while self.heap:
            now, _, event = heapq.heappop(self.heap)
            first = self.next_action
            self.actions = []
            self.react(now, event)
            yield Step(seq, now, event, first, self.actions or ())
            seq += 1
        yield Step(seq, now + 0.25, ev.RunEnding(EndReason.COMPLETED), self.next_action, ())

    def act(self, action):
        self.actions.append(action)
        self.next_action += 1
        return self.next_action - 1

    def arrive(self, now):
        group = self.next_group
        self.next_group += 1
        for sample in range(self.group_size):
            trajectory = group * self.group_size + sample
            self.context[trajectory], self.turn[trajectory] = 100 + 10 * group, 0
            self.alive[group] += 1
            self.at(
                now, ev.TrajectoryArrived(trajectory, group, group, sample, self.group_size, 100 + 10 * group)
            )

    def react(self, now, event):
        match event:
            case ev.TrajectoryArrived():
                action = self.act(ac.StartTrajectory(event.trajectory_id, "there is room"))
                self.at(now + 0.1, ev.TrajectoryStarted(action, event.trajectory_id))
            case ev.TrajectoryStarted() | ev.ToolReturned():
                self.submit(now, event.trajectory_id)
            case ev.TurnFailed() if event.trajectory_id in self.context:
                self.context[event.trajectory_id] += event.output_tokens
                self.submit(now, event.trajectory_id)
            case ev.TurnFinished() if event.trajectory_id in self.context:
                self.turn_finished(now, event)
            case ev.TrajectoryFinished():
                self.gone(event.trajectory_id)
                self.train(now)
            case ev.TrainStepFinished():
                self.version, self.training = event.version, False
                action = self.act(ac.PublishWeights(event.version, "a step is done"))
                self.at(now + 0.5, ev.WeightsPublished(action, event.version, now, now + 0.5))
                self.train(now)
            case ev.WeightsPublished():
                for replica in (0, 1):
                    action = self.act(ac.LoadWeights(replica, event.version, "newer weights"))
                    start = now + 0.2 * replica
                    self.at(start + 0.1, ev.WeightsLoaded(action, replica, event.version, start, start + 0.1))
            case ev.WeightsLoaded():
                self.loaded[event.replica_id] = event.version

    def submit(self, now, trajectory):
        self.count += 1
        replica = self.count % 2
        turn, prompt = self.turn[trajectory], self.context[trajectory]
        action = self.act(ac.SubmitTurn(trajectory, turn, replica, prompt, 0, "least loaded"))
        version, took = self.loaded[replica], float(self.rng.exponential(2.0))
        output, key = int(self.rng.integers(1, 400)), (trajectory, turn)
        if self.count % self.fail_every == 0 and key not in self.failed:
            self.failed.add(key)
            kind, kept = FailureKind.ABORTED, output // 3
            head = (action, trajectory, turn, replica, kind, prompt, kept, prompt // 2, 0, 0)
            self.at(now + took, ev.TurnFailed(*head, version, version, kept * version, now, now + took))
            return
        recomputed = int(self.rng.integers(0, 2)) * 30
        end = ev.NextStep.END if turn + 1 == self.num_turns else NextStep.TOOL
        finished = ev.TurnFinished(
            *(action, trajectory, turn, replica, prompt, output, prompt // 2, recomputed, recomputed // 30),
            *(
                version,
                version,
                output * version,
                now,
                now + 0.2 * took,
                now + 0.3 * took,
                now + took,
                end,
                "shell",
            ),
        )
        self.at(now + took, finished)
        if trajectory % self.drop_every == self.drop_every - 1 and turn == 1:
            self.act(ac.DropTrajectory(trajectory, DropReason.SURPLUS, "enough of its group"))
            self.gone(trajectory)

    def turn_finished(self, now, event):
        trajectory = event.trajectory_id
        payload, wait = int(self.rng.integers(0, 60)), float(self.rng.exponential(1.0))
        if event.next_step is NextStep.END:
            self.at(now + wait, ev.TrajectoryFinished(trajectory, self.num_turns, nan))
            return
        # Every third tool rewrites the history, so that the prefix is not known.
        rewritten = 5 if trajectory % 3 == 0 else 0
        self.turn[trajectory] += 1
        self.context[trajectory] += event.output_tokens + payload - rewritten
        answer = (ToolStatus.SUCCESS, payload, wait, self.context[trajectory])
        self.at(now + wait, ev.ToolReturned(trajectory, event.turn, "shell", *answer))

    def gone(self, trajectory):
        del self.context[trajectory]
        group = trajectory // self.group_size
        self.alive[group] -= 1
        if self.alive[group] == 0:
            self.complete.append(group)

    def train(self, now):
        if self.training or len(self.complete) < self.groups_per_step:
            return
        groups = tuple(self.complete[: self.groups_per_step])
        del self.complete[: self.groups_per_step]
        self.training = True
        size = len(groups) * self.group_size
        action = self.act(ac.StartTrainStep(groups, size, 1000 * size, "a batch is complete"))
        self.at(now + 3.0, ev.TrainStepFinished(action, self.version + 1, size, 1000 * size, now, now + 3.0))
        last = min(self.num_groups, (self.version + 3) * self.groups_per_step)
        while self.next_group < last:
            self.arrive(now)


@pytest.fixture(scope="session")
def story():
    """`Story(...)`; its `steps()` can be consumed once."""
    return Story


@pytest.fixture(scope="session")
def info():
    """What a driver would tell about the run."""
    return RunInfo(
        world="sim",
        config={"seed": 3, "name": "story"},
        seed=3,
        exit_reason=EndReason.COMPLETED,
        commit="abc",
    )
