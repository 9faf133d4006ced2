"""What rollout engines need around them, over stand-in servers: a launcher, published weights, a turn store."""

import asyncio
from dataclasses import dataclass, field

from executor.engines.fake_engine import FakeConfig
from executor.engines.fake_server import FakeServer
from executor.engines.launch import ReplicaPlan
from executor.engines.turns import TurnOutcome
from executor.engines.weights import BroadcastUpdate, DiskUpdate, WeightUpdate
from executor.engines.wire import GenerateResult
from executor.episodes import TurnPrompt
from libra.core.ids import NextStep, ReplicaId, TrajectoryId, WeightVersion
from libra.errors import UserError


class FakeRunning:
    """A stand-in server as a launched engine; `die` ends it as a crash would."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self._died = asyncio.Event()

    @property
    def base_url(self) -> str:
        return self.server.base_url

    async def wait(self) -> int:
        await self._died.wait()
        return 1

    async def die(self) -> None:
        self._died.set()
        await self.server.stop()

    async def stop(self, grace_s: float) -> None:
        await self.server.stop()

    def log_tail(self, num_lines: int) -> str:
        return "last lines of engine.log:\nout of luck"


class FakeLauncher:
    """Launches a stand-in for each start. `fail_next`: engines that die before they are healthy."""

    loads_model = True

    def __init__(self, config: FakeConfig) -> None:
        self.config = config
        self.launched: list[tuple[ReplicaPlan, str, FakeRunning]] = []
        self.fail_next = 0

    async def launch(self, plan: ReplicaPlan, model_path: str) -> FakeRunning:
        server = FakeServer(self.config)
        await server.start()
        server.engine.weights = int(model_path.rpartition("v")[2] or 0) if self.loads_model else 99
        running = FakeRunning(server)
        self.launched.append((plan, model_path, running))
        if self.fail_next:
            self.fail_next -= 1
            await running.die()
        return running

    def of(self, replica_id: int) -> FakeRunning:
        """The engine of the replica's newest life."""
        return [running for plan, _, running in self.launched if plan.replica_id == replica_id][-1]

    def server(self, replica_id: int) -> FakeServer:
        """Its server."""
        return self.of(replica_id).server


class FakeWeights:
    """Versions are folders `v1`, `v2`... that hold an empty safetensors file. direct: broadcasts instead."""

    def __init__(self, folder, direct: bool = False) -> None:
        self.folder = folder
        self.direct = direct
        self.published = 0
        self.refuse: UserError | None = None
        self.wrong: UserError | None = None
        self.sent: list[str] = []
        self.send_stuck = False

    def publish(self, version: int) -> None:
        """Make it loadable."""
        path = self.folder / f"v{version}"
        path.mkdir(exist_ok=True)
        (path / "model.safetensors").touch()
        self.published = version

    def launch_from(self) -> tuple[str, WeightVersion]:
        version = 0 if self.direct else self.published
        return f"{self.folder}/v{version}", WeightVersion(version)

    def published_version(self) -> WeightVersion:
        return WeightVersion(self.published)

    async def update(self, replica_id: ReplicaId, version: WeightVersion) -> WeightUpdate:
        if self.refuse is not None:
            raise self.refuse
        if not self.direct:
            return DiskUpdate(f"{self.folder}/v{version}")

        async def send() -> None:
            self.sent.append(f"send {replica_id}")
            if self.send_stuck:
                await asyncio.Event().wait()

        async def join() -> None:
            self.sent.append(f"join {replica_id}")

        return BroadcastUpdate("127.0.0.1", 1, 2, join, send, ("w",), ("float32",), ((2, 3),))

    async def verify(self, replica_id: ReplicaId, version: WeightVersion, client: object) -> None:
        if self.wrong is not None:
            raise self.wrong


@dataclass
class FakeStore:
    """Every trajectory begins with `prompt` tokens and wants `output` tokens in its turn."""

    prompt: int = 100
    output: int = 300
    contexts: dict[int, list[int]] = field(default_factory=dict)
    generated: dict[int, int] = field(default_factory=dict)
    ended: list[tuple[int, int, GenerateResult]] = field(default_factory=list)
    failed: list[tuple[int, int, GenerateResult]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def prompt_of(self, trajectory_id: TrajectoryId) -> TurnPrompt:
        context = self.contexts.setdefault(trajectory_id, [trajectory_id + 1] * self.prompt)
        left = self.output - self.generated.get(trajectory_id, 0)
        return TurnPrompt(tuple(context), left, 1.0, 1.0, seed=7)

    def on_turn_end(self, trajectory_id: TrajectoryId, turn: int, result: GenerateResult) -> TurnOutcome:
        self.order.append("end")
        self.ended.append((trajectory_id, turn, result))
        self.contexts[trajectory_id] += result.token_ids
        self.generated[trajectory_id] = 0
        return TurnOutcome(NextStep.TOOL, "shell")

    def on_turn_failed(self, trajectory_id: TrajectoryId, turn: int, result: GenerateResult) -> None:
        self.order.append("failed")
        self.failed.append((trajectory_id, turn, result))
        self.contexts[trajectory_id] += result.token_ids
        count = self.generated.get(trajectory_id, 0) + len(result.token_ids)
        self.generated[trajectory_id] = count

    def after_turn(self, trajectory_id: TrajectoryId, turn: int) -> None:
        self.order.append("after")
