"""Real vLLM engines on CPU: one TP 1 engine for most tests, one TP 2 engine and one that cannot start."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from executor.engines.command import Transfer, find_vllm
from executor.engines.config import EnginesConfig
from executor.engines.errors import EngineStartError, PromptTooLong, RequestRefused
from executor.engines.launch import LocalEngine, LocalLauncher, ReplicaPlan
from executor.engines.port_pool import PortPool
from executor.engines.replica import RealReplica
from executor.engines.rollout import VllmEngines
from executor.engines.serving import Surroundings
from executor.engines.transport import new_session
from executor.engines.weights import BroadcastUpdate, DiskUpdate
from executor.engines.wire import GenerateRequest, VersionSpan
from executor.tiny_model import make_tiny_model
from executor.trainer.transfer import DirectTransfer
from libra.config.schema import EngineConfig
from libra.core import events as ev
from libra.core.ids import FailureKind, ReplicaId, WeightVersion
from tests.support.fake_parts import FakeStore, FakeWeights
from tests.support.fake_rollout import Rollout

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
]

MAX_MODEL_LEN = 4000
LONG = 3900
"""Tokens of a turn that is still under way when a test interferes; it makes some thousand a second."""
PROMPT = tuple((7 * i + 3) % 256 for i in range(50))
CONFIG = EnginesConfig(dtype="float32", kv_cache_memory_bytes=2**25)
ENGINE = EngineConfig(
    max_num_seqs=8, max_num_batched_tokens=1024, block_size=32, scheduling_policy="priority"
)


@dataclass
class Models:
    """Folders of models that say different things, and what transformers makes of them."""

    folders: list[Path]
    loaded: list

    def greedy(self, model: int, prompt, count: int) -> list[int]:
        """What a model says after a prompt."""
        tokens = torch.tensor([list(prompt)])
        with torch.no_grad():
            out = self.loaded[model].generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=count,
                do_sample=False,
            )
        return out[0, len(prompt) :].tolist()

    def logprobs(self, model: int, tokens) -> list[float]:
        """Of each token but the first."""
        ids = torch.tensor([list(tokens)])
        with torch.no_grad():
            table = torch.log_softmax(self.loaded[model](ids).logits[0, :-1].double(), -1)
        return table.gather(-1, ids[0, 1:, None])[:, 0].tolist()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    root = tmp_path_factory.mktemp("models")
    folders = [make_tiny_model(root / f"v{seed}", seed=seed) for seed in range(3)]
    loaded = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in folders]
    for model in loaded:
        model.generation_config.eos_token_id = None  # as with ignore_eos
    return Models(folders, loaded)


def launcher(log_folder: Path, transfer: Transfer) -> LocalLauncher:
    return LocalLauncher(
        find_vllm(CONFIG.python),
        CONFIG,
        ENGINE,
        max_model_len=MAX_MODEL_LEN,
        gpu_memory_utilization=0.9,
        transfer=transfer,
        log_folder=log_folder,
    )


class Served:
    """A running replica and the loop that it lives on. Weight versions are numbers of models."""

    def __init__(self, runner: asyncio.Runner, replica: RealReplica, models: Models) -> None:
        self.runner = runner
        self.replica = replica
        self.client = replica.client
        self.models = models
        self._number = 0

    def run(self, work):
        """On the engine's loop."""

        async def limited():
            async with asyncio.timeout(300):
                return await work

        return self.runner.run(limited())

    def request(self, count: int, prompt=PROMPT, **more) -> GenerateRequest:
        self._number += 1
        settings = {"temperature": 0.0, "ignore_eos": True} | more
        return GenerateRequest(f"t{self._number}", prompt, count, **settings)

    async def load(self, version: int, **how) -> float:
        update = DiskUpdate(str(self.models.folders[version]))
        return await self.replica.load_weights(WeightVersion(version), update, deadline_s=120.0, **how)


@pytest.fixture(scope="module")
def served(models, tmp_path_factory):
    """One engine for all tests that need no other; it starts with model 0."""
    with asyncio.Runner() as runner:

        async def up():
            session = new_session()
            made = launcher(tmp_path_factory.mktemp("logs"), Transfer.DIRECT)
            replica = RealReplica(ReplicaPlan(ReplicaId(0), 1), made, session, CONFIG, time.monotonic)
            try:
                await replica.start(str(models.folders[0]), WeightVersion(0))
            except BaseException:
                await session.close()
                raise
            return session, replica

        async def down(session, replica):
            await replica.stop()
            await session.close()

        session, replica = runner.run(up())
        try:
            yield Served(runner, replica, models)
        finally:
            runner.run(down(session, replica))


def test_tokens_and_logprobs_are_those_of_transformers(served):
    models, client = served.models, served.client

    async def work():
        await served.load(0)
        return await asyncio.gather(
            client.generate(served.request(60)),
            client.generate(served.request(60, temperature=1.0, seed=5)),
            client.generate(served.request(60, temperature=1.0, seed=5)),
            client.generate(served.request(40, temperature=1.0, seed=5, allowed_token_ids=(48, 49, 50))),
            client.score(PROMPT),
            client.model_info(),
        )

    greedy, sampled, same, few, scores, model = served.run(work())
    assert list(greedy.token_ids) == models.greedy(0, PROMPT, 60)
    assert greedy.finish_reason == "length"
    assert greedy.version_spans == (VersionSpan(0, 0, 60),)
    assert greedy.submitted_at < greedy.first_token_at < greedy.ended_at
    assert sampled.token_ids == same.token_ids != greedy.token_ids
    assert set(few.token_ids) == {48, 49, 50}
    for result in (greedy, sampled, few):  # of the policy itself, also where sampling is restricted
        expected = models.logprobs(0, (*PROMPT, *result.token_ids))[len(PROMPT) - 1 :]
        assert result.logprobs == pytest.approx(expected, abs=1e-3)
    assert scores == pytest.approx(models.logprobs(0, PROMPT), abs=1e-3)
    assert (model.max_model_len, model.kv_capacity_tokens) == (MAX_MODEL_LEN, 32768)

    async def stop_and_limits():
        stop = greedy.token_ids[9]
        stopped = await client.generate(served.request(60, stop_token_ids=(stop,)))
        assert stopped.cached_tokens == 32  # one block; the last token is always computed
        assert stopped.finish_reason == "stop"
        assert stopped.token_ids == greedy.token_ids[: greedy.token_ids.index(stop) + 1]
        full = await client.generate(served.request(1, [5] * (MAX_MODEL_LEN - 1)))
        assert len(full.token_ids) == 1
        for length in (MAX_MODEL_LEN, MAX_MODEL_LEN + 500):
            with pytest.raises(PromptTooLong, match="maximum model length of 4000"):
                await client.generate(served.request(1, [5] * length))
        with pytest.raises(RequestRefused, match="out of vocabulary"):
            await client.generate(served.request(1, [600]))

    served.run(stop_and_limits())


def test_abort_and_pause_keep_tokens_and_metrics_tell(served):
    client = served.client

    async def work():
        await client.prepare()
        before = await client.metrics()
        for _ in range(5):
            generation = client.open(served.request(LONG))
            task = asyncio.create_task(generation.run())
            while generation.num_messages < 4:
                await asyncio.sleep(0.01)
            running = await client.metrics()
            await client.pause()
            frozen = await client.metrics()
            await asyncio.sleep(0.3)
            assert (await client.metrics()).generation_tokens == frozen.generation_tokens
            if not task.done():
                break
            await client.resume()  # a busy machine: the turn was over before the pause came
        assert not task.done()
        await client.resume()
        num_messages = generation.num_messages
        while generation.num_messages <= num_messages:
            await asyncio.sleep(0.01)
        await client.abort(generation.request.request_id)
        aborted = await task
        cancelled = client.open(served.request(LONG))
        task = asyncio.create_task(cancelled.run())
        while cancelled.num_messages < 3:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while (after := await client.metrics()).num_running:
            await asyncio.sleep(0.05)
        return before, running, aborted, cancelled.so_far(), after

    before, running, aborted, cancelled, after = served.run(work())
    assert (running.num_running, running.num_waiting) == (1, 0)
    assert 0 < running.kv_used_fraction < 0.1
    assert aborted.finish_reason == "abort"
    assert 33 <= len(aborted.token_ids) == len(aborted.logprobs) < LONG
    assert 33 <= len(cancelled.token_ids) < LONG
    assert cancelled.finish_reason == "broken"
    assert cancelled.token_ids[:33] == aborted.token_ids[:33]
    assert after.generation_tokens - before.generation_tokens >= len(aborted.token_ids)
    assert after.prefix_queries > before.prefix_queries


@pytest.mark.parametrize("way", ["disk", "direct"])
def test_new_weights_in_mid_generation_are_the_trainers_from_the_stamp_on(served, way):
    """Greedy output after the load equals that of transformers on the new weights, and so does a fresh prompt's."""
    models, client, replica = served.models, served.client, served.replica
    transfer, ports = DirectTransfer(), PortPool("18190-18199")
    weights = {version: load_file(models.folders[version] / "model.safetensors") for version in (1, 2)}

    def broadcast(version: int, port: int) -> BroadcastUpdate:
        transfer.hold(version, weights[version])
        names, dtypes, shapes = zip(*transfer.weight_info().info(), strict=True)
        return BroadcastUpdate(
            "127.0.0.1",
            port,
            2,
            join=lambda: asyncio.to_thread(transfer.init, 0, "127.0.0.1", port, 2, "gloo", 120.0),
            send=lambda: asyncio.to_thread(transfer.push, 0, version),
            names=names,
            dtypes=dtypes,
            shapes=tuple(map(tuple, shapes)),
        )

    async def load(version: int, port: int) -> float:
        if way == "disk":
            return await served.load(version)
        return await replica.load_weights(WeightVersion(version), broadcast(version, port), deadline_s=120.0)

    async def work():
        await served.load(0)
        port = ports.take()
        generation = client.open(served.request(LONG))
        task = asyncio.create_task(generation.run())
        while generation.num_messages < 4:
            await asyncio.sleep(0.01)
        await load(1, port)
        num_messages = generation.num_messages
        while generation.num_messages < num_messages + 10:
            await asyncio.sleep(0.01)
        await client.abort(generation.request.request_id)
        mixed = await task
        fresh = await client.generate(served.request(60))
        await load(2, port)
        return mixed, fresh, await client.generate(served.request(60)), await client.version()

    mixed, fresh, second, version = served.run(work())
    ports.close()
    (old, new) = mixed.version_spans
    assert (old.version, old.start, new.version, new.end) == (0, 0, 1, len(mixed.token_ids))
    assert 33 <= old.end == new.start < new.end - 100
    tokens = list(mixed.token_ids)
    assert tokens[: old.end] == models.greedy(0, PROMPT, old.end)
    assert tokens[new.start :][:100] == models.greedy(1, (*PROMPT, *tokens[: new.start]), 100)
    assert list(fresh.token_ids) == models.greedy(1, PROMPT, 60)
    assert list(second.token_ids) == models.greedy(2, PROMPT, 60)
    assert version == 2


def test_a_tp2_engine_through_the_port_and_nothing_left_after_its_stop(models, tmp_path):
    """Boot, a turn, a load, an abort, a loss by kill, a restart with the published weights, a stop."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        made, weights, store = launcher(tmp_path / "logs", Transfer.DISK), FakeWeights(None), FakeStore()
        weights.folder, store.prompt, store.output = models.folders[0].parent, 40, 200
        async with new_session() as session:

            def engines_of(rollout: Rollout) -> VllmEngines:
                return VllmEngines(
                    [ReplicaPlan(ReplicaId(0), 2)],
                    made,
                    weights,
                    store,
                    config=CONFIG,
                    engine=ENGINE,
                    partial_rollout=True,
                    load_deadline_s=120.0,
                    session=session,
                    around=Surroundings(loop.time, rollout.emit, rollout.notes.append),
                    fail=rollout.fail,
                )

            rollout = Rollout(engines_of)
            try:
                await rollout.engines.boot()
                await tour(rollout, store, weights)
            finally:
                await rollout.engines.close()

    async def tour(rollout: Rollout, store: FakeStore, weights: FakeWeights) -> None:
        turn = await rollout.end_of(rollout.submit(0))
        assert type(turn) is ev.TurnFinished
        assert (turn.output_tokens, turn.version_token_sum, turn.cached_tokens) == (200, 0, 0)
        assert turn.submitted_s <= turn.started_s < turn.first_token_s < turn.finished_s
        result = store.ended[0][2]
        expected = models.logprobs(0, ([1] * 40) + list(result.token_ids))[39:]
        assert result.logprobs == pytest.approx(expected, abs=1e-3)
        weights.published = 1
        loaded = await rollout.end_of(rollout.load())
        assert (type(loaded), loaded.version) == (ev.WeightsLoaded, 1)
        store.output = LONG
        for trajectory in range(1, 6):
            submit_id = rollout.submit(trajectory)
            await asyncio.sleep(1.0)
            rollout.abort(trajectory, submit_id)
            failed = await rollout.end_of(submit_id)
            if type(failed) is ev.TurnFailed:
                break  # else a busy machine: the turn was over before the abort came
        assert failed.kind is FailureKind.ABORTED
        assert (failed.version_first, failed.output_tokens > 0) == (1, True)
        life = rollout.engines._lives[ReplicaId(0)]
        process = engine_of(life.replica).process
        assert len(process.descendants()) >= 4  # server, engine core, two workers
        left = process.descendants()
        stop_id = rollout.stop()
        assert await rollout.end_of(stop_id) == ev.ReplicaStopped(stop_id, 0)
        assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]
        assert life.replica is None

    with asyncio.Runner() as runner:
        runner.run(work())


def engine_of(replica: RealReplica | None) -> LocalEngine:
    assert replica is not None
    assert isinstance(replica._engine, LocalEngine)
    return replica._engine


def test_an_engine_that_cannot_start_shows_the_end_of_its_log(models, tmp_path):
    async def work() -> None:
        made = launcher(tmp_path, Transfer.DISK)
        async with new_session() as session:
            replica = RealReplica(
                ReplicaPlan(ReplicaId(3), 1), made, session, CONFIG, asyncio.get_running_loop().time
            )
            with pytest.raises(EngineStartError) as caught:
                await replica.start(str(tmp_path / "nowhere"), WeightVersion(0))
        first, *rest = str(caught.value).splitlines()
        assert first.startswith("replica 3 (tp 1) at http://127.0.0.1:")
        assert f"before it was healthy; last lines of {tmp_path}/replica_3.log" in first
        assert any("nowhere" in line for line in rest)
        assert made.ports.num_free() > 0

    with asyncio.Runner() as runner:
        runner.run(work())
