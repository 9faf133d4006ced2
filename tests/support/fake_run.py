"""A whole executor run in the test's own process: stand-in engines, a stand-in trainer, everything else as it is.

The trainer is instant and its rewards are the environment's, so that three steps take a fraction of a second.
"""

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from executor.driver import ExecutorDriver
from executor.engines.fake_engine import FakeConfig
from executor.engines.fake_server import FakeServer
from executor.environments.chat import ChatTokens
from executor.plan import RunPlan, make_plan, resolve_for_executor
from executor.run import Host, Outcome, Parts, execute
from executor.run_folder import RunFolder
from executor.trainer.batch import Sample, TrainBatch
from executor.trainer.client import StepResult, weights_folder
from libra.config.document import Document, apply_sets
from libra.core.ids import EndReason
from libra.errors import UserError
from libra.record.manifest import HostInfo, RunInfo

VOCABULARY, STOP = 512, 258
MODEL = {
    "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 16, "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 1e6,
}  # fmt: skip
EXPERIMENT = """
name: fake
hardware_config: CPU
model_arch_config: Qwen3-tiny
cluster: {num_nodes: 1, gpus_per_node: 4}
train_gpus: 2
total_steps: 3
batch_size: 8
n_samples: 4
max_concurrent_rollouts: 16
max_head_offpolicyness: 1
workload: {kind: environment, environment: {kind: cipher, num_keys: 5}}
heterogeneous_rollout:
  instances: [{tp: 1, count: 2}]
  max_model_len: 64
  engine: {max_num_seqs: 8, block_size: 32, max_num_batched_tokens: 512}
  scheduling: {scheduler_type: load_balance, max_queue_length: 64}
executor:
  model_path: model
  launcher: static
  metrics_period_s: 0.05
  sampling: {max_new_tokens: 8}
  engines: {endpoints: ["http://127.0.0.1:1", "http://127.0.0.1:2"], health_period_s: 0.05}
  checkpoint: {interval_steps: 1, keep: 100}
  trainer: {dtype: float32, micro_batch_size: 1, max_seq_length_tokens: 64}
"""


def write_model(folder: Path, *, largest_token: int = 300, **config: object) -> Path:
    """A model folder with the files that a plan reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL | config))
    vocabulary = {"model": {"vocab": {"a": 0, "b": largest_token}}}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    table = {"model.embed_tokens.weight": {"dtype": "F32", "shape": [VOCABULARY, 8], "data_offsets": [0, 0]}}
    header = json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


class ByteTokenizer:
    """Bytes are tokens, 258 ends a turn; as much of transformers' interface as `ChatTokens` uses."""

    eos_token_id = STOP
    all_special_ids = (STOP,)
    chat_template = None

    def __len__(self) -> int:
        return STOP + 1

    def __call__(self, text: str, **_: object) -> Any:
        @dataclass
        class Encoded:
            input_ids: list[int]

        return Encoded(list(text.encode("utf-8", "replace")))

    def decode(self, token_ids: Sequence[int], **_: object) -> str:
        return bytes(token for token in token_ids if token < 256).decode("latin-1")


def tokens_of(model_path: Path) -> ChatTokens:
    """In the place of `ChatTokens.load`."""
    return ChatTokens(ByteTokenizer(), (STOP,))


@dataclass
class FakeTrainer:
    """Has the methods of `TrainerClient`. `batches`: what was trained on, by version. fail_at: a step that raises.
    fail_publications: how many publications fail.

    step_s: how long a step takes. signal: whether steps find something to learn from. wrong_by: error of `logprobs`.
    unready: why it never becomes ready. death: set it, and a rank has died.
    """

    version: int = 0
    batches: dict[int, TrainBatch] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fail_at: int = 0
    fail_publications: int = 0
    step_s: float = 0.0
    signal: bool = True
    wrong_by: float = 0.0
    unready: str = ""
    death: asyncio.Event = field(default_factory=asyncio.Event)
    notes: tuple[str, ...] = ("it is a stand-in",)

    async def wait_ready(self, timeout_s: float = 300.0) -> int:
        if self.unready:
            raise UserError(self.unready)
        return self.version

    async def watch(self) -> None:
        await self.death.wait()
        raise UserError("trainer rank 1 ended with status 9: it said nothing")

    async def step(self, batch: TrainBatch, version: int) -> StepResult:
        assert version == self.version + 1
        self.calls.append(f"step {version}")
        await asyncio.sleep(self.step_s)
        if version == self.fail_at:
            raise UserError("trainer: step failed: out of luck")
        self.version = version
        self.batches[version] = batch
        groups = {s.group_id for s in batch.samples}
        rewards = float(np.mean([s.reward for s in batch.samples] or [0.0]))
        return StepResult(
            version, 0.1, 1.0, 0.0, rewards, len(batch.samples), sum(len(s.tokens) for s in batch.samples),
            0 if self.signal else len(groups), 0.0, 0.0, 0.0, 0.0, 1.0,
        )  # fmt: skip

    async def publish(self, version: int, mode: str, folder: str | Path | None = None) -> None:
        assert version == self.version
        self.calls.append(f"publish {version} {mode}")
        if self.fail_publications:
            self.fail_publications -= 1
            raise UserError(f"trainer: publish failed: no space for version {version}")
        if folder is not None:
            path = weights_folder(folder, version)
            path.mkdir(parents=True, exist_ok=True)
            (path / "model.safetensors").touch()

    async def init_direct(self, replica_id: int, *_: object, **__: object) -> None:
        self.calls.append(f"join {replica_id}")

    async def push(self, replica_id: int, version: int) -> int:
        self.calls.append(f"push {replica_id} {version}")
        return 0

    async def weight_info(self) -> list[tuple[str, str, list[int]]]:
        return [("w", "float32", [2, 3])]

    async def save(self, folder: str | Path) -> None:
        path = Path(folder)
        path.mkdir(parents=True)
        (path / "trainer.json").write_text(json.dumps({"version": self.version}))

    async def logprobs(self, samples: Sequence[Sample]) -> list[Any]:
        """What stand-in engines say, too."""
        return [-((s.tokens % 8) + 1).astype(np.float32) / 4 + self.wrong_by for s in samples]

    async def stop(self) -> None:
        self.calls.append("stop")


def document(folder: Path, *sets: str) -> Document:
    """The experiment below `folder`, which holds its model."""
    import yaml

    made = Document(yaml.safe_load(EXPERIMENT), {}, folder)
    apply_sets(made, list(sets))
    return made


def plan_of(folder: Path, *sets: str) -> RunPlan:
    """The plan of a run whose model lies in `folder`. The engines' addresses are put in when they are known."""
    if not (folder / "model").exists():
        write_model(folder / "model")
    return make_plan(resolve_for_executor(document(folder, *sets)))


@dataclass
class FakeRun:
    """What a test holds after a run, or while it goes on (`during`)."""

    plan: RunPlan
    trainer: FakeTrainer
    servers: list[FakeServer]
    driver: ExecutorDriver | None = None
    said: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    root: Path = Path()

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Rows of steps.jsonl."""
        lines = (self.root / "steps.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def prompts(self) -> list[int]:
        """Prompts trained on, in the order of steps."""
        return [number for step in self.steps for number in step["prompts"]]


def run_fake(
    folder: Path,
    *sets: str,
    trainer: FakeTrainer | None = None,
    fake: FakeConfig | None = None,
    during: Callable[[FakeRun], Any] | None = None,
    on_servers: Callable[[list[FakeServer]], None] = lambda servers: None,
    on_driver: Callable[[FakeRun], None] = lambda run: None,
    fresh: bool = False,
    limit_s: float = 30.0,
    out: str = "run",
) -> FakeRun:
    """One attempt at the experiment in `folder / out`, going on where the one before stopped.

    on_servers: called before anything is started. on_driver: called once there is a driver; during: a coroutine
    function that runs beside it from then on.
    """

    async def body() -> FakeRun:
        async with asyncio.timeout(limit_s):
            plan = plan_of(folder, *sets)
            run = FakeRun(plan, trainer or FakeTrainer(), [], root=folder / out)
            run_folder = RunFolder.open(
                run.root, plan.resolved.tree(), plan.resolved.policy_hashes(), fresh=fresh
            )
            try:
                await _attempt(run, run_folder, fake, during, on_servers, on_driver)
            finally:
                run_folder.close()
            return run

    return asyncio.run(body())


async def _attempt(
    run: FakeRun,
    folder: RunFolder,
    fake: FakeConfig | None,
    during: Callable[[FakeRun], Any] | None,
    on_servers: Callable[[list[FakeServer]], None],
    first: Callable[[FakeRun], None],
) -> None:
    beside: list[asyncio.Task[Any]] = []

    @contextlib.asynccontextmanager
    async def trainer_of(plan: RunPlan, folder: RunFolder) -> AsyncIterator[Any]:
        if folder.checkpoint is not None:
            saved = json.loads((folder.checkpoint / "trainer" / "trainer.json").read_text())
            run.trainer.version = saved["version"]
        yield run.trainer

    def on_driver(driver: ExecutorDriver) -> None:
        run.driver = driver
        first(run)
        if during is not None:
            beside.append(asyncio.get_running_loop().create_task(during(run)))

    async with contextlib.AsyncExitStack() as stack:
        config = fake or FakeConfig(max_model_len=64, vocab_size=128)
        for _ in run.plan.replicas:
            run.servers.append(await stack.enter_async_context(FakeServer(config)))
        on_servers(run.servers)
        addresses = tuple(server.base_url for server in run.servers)
        run.plan = _with_addresses(run.plan, addresses)
        run.outcome = await execute(
            run.plan, folder, host_of(run.plan), run.said.append, on_driver, Parts(trainer_of, tokens_of)
        )
        for task in beside:
            await task


def _with_addresses(plan: RunPlan, addresses: tuple[str, ...]) -> RunPlan:
    """Ports are picked when servers start, and are no part of what the run is."""
    import dataclasses

    engines = dataclasses.replace(plan.config.engines, endpoints=addresses)
    return dataclasses.replace(plan, config=dataclasses.replace(plan.config, engines=engines))


def host_of(plan: RunPlan) -> Host:
    """A manifest that says the same every time."""

    def info(reason: EndReason, notes: tuple[str, ...]) -> RunInfo:
        return RunInfo(
            world="executor",
            config=plan.resolved.tree(),
            seed=plan.resolved.experiment.seed,
            exit_reason=reason,
            policies=plan.resolved.policy_hashes(),
            notes=notes,
        )

    return Host(info, HostInfo)
