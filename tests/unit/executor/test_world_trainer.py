"""The trainer's port and the published weights: what is told when, what is kept, and what is never pretended."""

import asyncio
from types import SimpleNamespace

import pytest

from executor.engines.weights import BroadcastUpdate, DiskUpdate
from executor.episodes import Episode, EpisodeStore, SamplingConfig, TurnTokens
from executor.progress import Progress
from executor.trainer.client import weights_folder
from executor.world.trainer import RealTrainer, TrainerHooks
from executor.world.weights import PublishedWeights
from libra.core import actions as act
from libra.core import events as ev
from libra.core.ids import ActionId, FailureKind
from libra.errors import UserError
from tests.support.fake_run import FakeTrainer
from tests.support.virtual_time import VirtualLoop


class Port:
    """`RealTrainer` with two groups of two finished trajectories, on a loop whose time jumps. `told`: in order."""

    def __init__(self, *, max_empty_batches=2, publish=None, **fake) -> None:
        self.loop = VirtualLoop()
        self.told, self.errors, self.rows = [], [], []
        self.store = EpisodeStore(SamplingConfig(), max_model_len=50, seed=0, stop_token_ids=())
        for number in range(8):
            self.add(number)
        self.progress = Progress()
        self.trainer = FakeTrainer(step_s=2.0, **fake)

        async def checkpoint(version, progress):
            self.told.append(("checkpoint", version, progress.watermark))
            await asyncio.sleep(1.0)

        async def published(version):
            await asyncio.sleep(1.0)

        self.port = RealTrainer(
            self.trainer,
            self.store,
            self.progress,
            SimpleNamespace(now_s=self.loop.time),
            self.told.append,
            self._spawn,
            TrainerHooks(checkpoint, self.rows.append),
            publish or published,
            max_empty_batches=max_empty_batches,
        )

    def add(self, number, finished=True):
        episode = Episode(number, number // 2, number % 2, "task", reward=number / 10, finished=finished)
        episode.extend_prompt((1, 2, 3))
        episode.extend_generated(TurnTokens([4] * (1 + number), [-1.0] * (1 + number), [0] * (1 + number)))
        self.store.add(episode)

    def _spawn(self, work, name):
        task = self.loop.create_task(work, name=name)
        task.add_done_callback(
            lambda done: self.errors.append(done.exception()) if done.exception() else None
        )

    def step(self, *groups, number=0):
        self.port.start_step(ActionId(number), act.StartTrainStep(groups, 2 * len(groups), 20, ""))
        self.loop.run_until_complete(asyncio.sleep(10.0))

    def publish(self, version=1):
        self.port.publish(ActionId(9), act.PublishWeights(version, ""))
        self.loop.run_until_complete(asyncio.sleep(10.0))


@pytest.fixture
def make():
    made = []

    def port(**settings):
        made.append(Port(**settings))
        return made[-1]

    yield port
    for each in made:
        each.loop.close()


def test_a_checkpoint_is_written_before_anybody_hears_of_the_step(make):
    port = make()
    port.step(0, 1)
    assert port.told == [
        ("checkpoint", 1, 2),
        ev.TrainStepFinished(0, 1, 4, 4 * 3 + 1 + 2 + 3 + 4, 0.0, 3.0),
    ]
    assert (port.progress.version, port.progress.watermark) == (1, 2)
    assert port.store.group(0) == port.store.group(1) == []
    (row,) = port.rows
    assert (row.version, row.prompts, row.num_groups, row.num_trajectories) == (1, [0, 1], 2, 4)
    assert (row.reward_mean, row.output_tokens_mean, row.staleness_mean) == (pytest.approx(0.15), 2.5, 0.0)
    assert (row.started_s, row.finished_s) == (0.0, 2.0)
    assert row.figures["version"] == 1


def test_only_what_has_finished_is_trained_on(make):
    port = make()
    port.store.remove(1)
    port.step(0)
    assert [s.trajectory_id for s in port.trainer.batches[1].samples] == [0]
    assert port.told[-1].num_trajectories == 1


def test_a_step_that_fails_changes_nothing(make):
    port = make(fail_at=1)
    port.step(0)
    assert [str(error) for error in port.errors] == ["trainer: step failed: out of luck"]
    assert port.told == []
    assert (port.progress, len(port.store.group(0))) == (Progress(), 2)


def test_batches_without_signal_are_borne_so_many_times(make):
    port = make(signal=False)
    port.step(0)
    assert not port.errors
    port.trainer.signal = True
    port.step(1)
    port.trainer.signal = False
    port.step(2)
    assert not port.errors
    port.step(3)
    (error,) = port.errors
    assert "2 train steps in a row had nothing to learn from" in str(error)
    assert len([event for event in port.told if type(event) is ev.TrainStepFinished]) == 3


def test_a_publication_ends_with_the_version_or_its_cause(make):
    port = make()
    port.publish()
    assert port.told == [ev.WeightsPublished(9, 1, 0.0, 1.0)]

    async def refused(version):
        raise UserError("no space")

    port = make(publish=refused)
    port.publish()
    assert port.told == [ev.ActionFailed(9, FailureKind.ENGINE_ERROR, "no space")]


# -- published weights --------------------------------------------------------------------------------------


class Weights:
    """`PublishedWeights` over a stand-in trainer."""

    def __init__(self, folder, mode="disk", **settings) -> None:
        self.folder = folder / "weights"
        self.trainer = FakeTrainer()
        self.source = PublishedWeights(
            self.trainer, mode=mode, folder=self.folder, start_path=folder / "model", start_version=0,
            **{"keep_versions": 2, "num_probes": 0, **settings},
            tp_of=lambda replica: 2, vocab_size=300, tolerance=1e-3,
        )  # fmt: skip

    def publish(self, *versions):
        async def body():
            for version in versions:
                self.trainer.version = version
                await self.source.publish(version)

        asyncio.run(body())

    @property
    def names(self):
        return sorted(path.name for path in self.folder.iterdir())


def test_engines_are_launched_from_weights_that_nobody_removes(tmp_path):
    weights = Weights(tmp_path)
    assert (weights.source.launch_from(), weights.source.published_version()) == (
        (str(tmp_path / "model"), 0),
        0,
    )
    weights.publish(1, 2, 3)
    assert (weights.source.launch_from(), weights.source.published_version()) == (
        (str(tmp_path / "model"), 0),
        3,
    )
    assert weights.names == ["v000002", "v000003"]


def test_what_an_engine_was_told_to_load_stays(tmp_path):
    weights = Weights(tmp_path, keep_versions=1)
    weights.publish(1)
    update = asyncio.run(weights.source.update(0, 1))
    assert update == DiskUpdate(str(weights_folder(weights.folder, 1)))
    weights.publish(2, 3)
    assert weights.names == ["v000001", "v000003"]
    asyncio.run(weights.source.update(0, 3))
    weights.publish(4)
    assert weights.names == ["v000003", "v000004"]
    with pytest.raises(UserError, match=r"weights version 2: .* is gone; raise weight_sync.keep_versions"):
        asyncio.run(weights.source.update(0, 2))


def test_a_resumed_run_removes_what_came_after_its_checkpoint_and_not_its_own(tmp_path):
    Weights(tmp_path).publish(17, 18, 19)
    resumed = Weights(tmp_path)
    resumed.publish(10)
    assert resumed.names == ["v000010"]


def test_mode_none_publishes_what_a_resumed_run_begins_with(tmp_path):
    weights = Weights(tmp_path, "none")
    weights.publish(4)
    assert type(asyncio.run(weights.source.update(0, 4))) is DiskUpdate


def test_a_broadcast_is_not_overtaken_by_the_publication_after_the_next(tmp_path):
    """The trainer holds two versions; a third waits for engines that are at the first."""

    async def body():
        weights = Weights(tmp_path, "direct")
        publish = weights.source.publish
        weights.trainer.version = 1
        await publish(1)
        update = await weights.source.update(0, 1)
        assert type(update) is BroadcastUpdate
        assert (update.world_size, update.names, update.shapes) == (3, ("w",), ((2, 3),))
        weights.trainer.version = 2
        await publish(2)
        weights.trainer.version = 3
        third = asyncio.create_task(publish(3))
        await asyncio.sleep(1.0)
        assert not third.done()
        await update.send()
        await third
        assert weights.trainer.calls[-2:] == ["push 0 1", "publish 3 direct"]

    _run(body())


@pytest.mark.parametrize("ending", ["join", "cancel", "deadline"])
def test_a_broadcast_that_came_to_nothing_holds_nobody_up(tmp_path, ending):
    async def body():
        loop = asyncio.get_running_loop()
        weights = Weights(tmp_path, "direct", deadline_s=30.0)
        weights.trainer.version = 1
        await weights.source.publish(1)
        update = await weights.source.update(0, 1)
        if ending == "join":
            weights.trainer.init_direct = _refuse
            with pytest.raises(UserError):
                await update.join()
        if ending == "cancel":
            weights.trainer.push = _hang
            sending = asyncio.create_task(update.send())
            await asyncio.sleep(1.0)
            sending.cancel()
            await asyncio.wait({sending})
        began_s = loop.time()
        for version in (2, 3):
            weights.trainer.version = version
            await weights.source.publish(version)
        assert loop.time() - began_s == (30.0 if ending == "deadline" else 0.0)

    _run(body())


def test_a_probe_is_of_the_version_that_was_loaded_also_when_a_newer_one_is_published(tmp_path):
    scores = {}

    class Client:
        async def score(self, tokens):
            return scores["right"](tokens)

    async def body():
        weights = Weights(tmp_path, num_probes=2)
        for version in (1, 2):
            weights.trainer.version = version
            weights.trainer.wrong_by = version / 10
            await weights.source.publish(version)
        scores["right"] = lambda tokens: [-(t % 8 + 1) / 4 + 0.1 for t in tokens[1:]]
        await weights.source.verify(0, 1, Client())
        with pytest.raises(
            UserError, match=r"replica 0: serves other weights than version 2: .* up to 0\.1 "
        ):
            await weights.source.verify(0, 2, Client())
        scores["right"] = lambda tokens: [float("nan")] * (len(tokens) - 1)
        with pytest.raises(UserError, match="up to nan"):
            await weights.source.verify(0, 1, Client())
        await weights.source.verify(0, 0, Client())  # nothing is known of what they began with

    _run(body())


async def _refuse(*args, **settings):
    raise UserError("nobody joined")


async def _hang(*args):
    await asyncio.Event().wait()


def _run(body) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(body)
    finally:
        loop.close()
