"""How an engine comes to be: launched on this machine, or already there.

Guarantees: a launched engine has a port of its own and a log file per replica; `stop` returns when nothing of it is
left and its port is free again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from executor.engines.command import EngineSpec, Installed, Transfer, engine_command
from executor.engines.config import EnginesConfig
from executor.engines.port_pool import PortPool
from executor.launchers.local import ManagedProcess
from libra.config.schema import EngineConfig
from libra.core.ids import NodeId, ReplicaId
from libra.errors import UserError

_FIRST_NODE = NodeId(0)


_FIRST_NODE = NodeId(0)


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """What a replica is made of. gpus: indices on its node, empty on CPU."""

    replica_id: ReplicaId
    tp: int
    node_id: NodeId = _FIRST_NODE
    gpus: tuple[int, ...] = ()


class RunningEngine(Protocol):
    """An engine that was launched; it need not be healthy yet."""

    @property
    def base_url(self) -> str:
        """Where it listens."""
        ...

    async def wait(self) -> int:
        """Wait until its process ends; the exit status. Never returns for an engine of somebody else."""
        ...

    async def stop(self, grace_s: float) -> None:
        """End it and wait until it is gone. Harmless where it is."""
        ...

    def log_tail(self, num_lines: int) -> str:
        """The last lines that it wrote, under a line that names the file; empty where there are none."""
        ...


class EngineLauncher(Protocol):
    """Launches the engine of a replica, as often as it is started.

    loads_model: the engine that `launch` gives has the model of `model_path`; else it has whatever it has.
    """

    @property
    def loads_model(self) -> bool:
        """See the class."""
        ...

    async def launch(self, plan: ReplicaPlan, model_path: str) -> RunningEngine:
        """Launch it, without waiting for it to be healthy. Raises UserError."""
        ...


class LocalEngine:
    """A process on this machine."""

    def __init__(self, base_url: str, process: ManagedProcess, ports: PortPool, port: int) -> None:
        self._base_url = base_url
        self.process = process
        self._ports = ports
        self._port = port

    @property
    def base_url(self) -> str:
        """See `RunningEngine`."""
        return self._base_url

    async def wait(self) -> int:
        """See `RunningEngine`."""
        return await self.process.wait()

    async def stop(self, grace_s: float) -> None:
        """See `RunningEngine`."""
        try:
            await self.process.stop(grace_s)
        finally:
            self._ports.give_back(self._port)

    def log_tail(self, num_lines: int) -> str:
        """See `RunningEngine`."""
        tail = self.process.log_tail(num_lines)
        return f"last lines of {self.process.log_path}:\n{tail}" if tail else ""


class LocalLauncher:
    """Launches vLLM engines as processes of this machine."""

    loads_model = True

    def __init__(
        self,
        installed: Installed,
        config: EnginesConfig,
        engine: EngineConfig,
        *,
        max_model_len: int,
        gpu_memory_utilization: float,
        transfer: Transfer,
        log_folder: Path,
        seed: int = 0,
        ports: PortPool | None = None,
    ) -> None:
        self._installed = installed
        self._config = config
        self._engine = engine
        self._max_model_len = max_model_len
        self._gpu_memory_utilization = gpu_memory_utilization
        self._transfer = transfer
        self._log_folder = log_folder
        self._seed = seed
        self.ports = ports or PortPool(config.ports, config.host)

    async def launch(self, plan: ReplicaPlan, model_path: str) -> LocalEngine:
        """See `EngineLauncher`."""
        port = self.ports.take()
        spec = EngineSpec(
            model_path=model_path,
            tp=plan.tp,
            port=port,
            max_model_len=self._max_model_len,
            gpu_memory_utilization=self._gpu_memory_utilization,
            gpus=plan.gpus,
            transfer=self._transfer,
            seed=self._seed,
        )
        command = engine_command(self._installed, self._config, self._engine, spec)
        log_path = self._log_folder / f"replica_{plan.replica_id}.log"
        try:
            process = await ManagedProcess.start(
                f"replica {plan.replica_id}", command.argv, command.env, log_path
            )
        except BaseException:
            self.ports.give_back(port)
            raise
        return LocalEngine(f"http://{self._config.host}:{port}", process, self.ports, port)


class StaticEngine:
    """An engine that somebody else started and will stop."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    @property
    def base_url(self) -> str:
        """See `RunningEngine`."""
        return self._base_url

    async def wait(self) -> int:
        """See `RunningEngine`."""
        await asyncio.Event().wait()
        return 0

    async def stop(self, grace_s: float) -> None:
        """Nothing: it is not ours."""

    def log_tail(self, num_lines: int) -> str:
        """Nothing: its log is elsewhere."""
        return ""


class StaticLauncher:
    """Gives replica i the i-th of the addresses."""

    loads_model = False

    def __init__(self, endpoints: Sequence[str], num_replicas: int) -> None:
        if len(endpoints) != num_replicas:
            raise UserError(
                f"executor.engines.endpoints: {len(endpoints)} addresses for {num_replicas} replicas of "
                "heterogeneous_rollout.instances; give one each"
            )
        self._endpoints = tuple(endpoints)

    async def launch(self, plan: ReplicaPlan, model_path: str) -> StaticEngine:
        """See `EngineLauncher`."""
        return StaticEngine(self._endpoints[plan.replica_id])
