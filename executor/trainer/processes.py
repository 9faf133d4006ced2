"""The trainer's worker processes on this machine.

Guarantees: all ranks run or none does: when one ends unasked, `died` tells which and why; `stop` ends all of them; a
driver that is killed leaves none behind (`executor.launchers.local`).
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import executor
from executor.launchers.local import ManagedProcess
from executor.trainer.spec import TrainerConfig, TrainerSpec

_LOG_LINES = 12


class TrainerProcesses:
    """One running trainer. Make it with `start`."""

    def __init__(self, spec: TrainerSpec, ranks: list[ManagedProcess]) -> None:
        self.spec = spec
        self.ranks = ranks

    @classmethod
    async def start(
        cls,
        config: TrainerConfig,
        model_path: str | Path,
        folder: str | Path,
        *,
        start_version: int = 0,
        checkpoint: str | Path = "",
        devices: Sequence[int] = (),
        ports: tuple[int, int] | None = None,
        python: str = sys.executable,
        timeout_s: float = 1800.0,
    ) -> Self:
        """Start one process a rank, with specification and logs in `folder`; they are not ready yet.

        config: with train_dp_size filled in. devices: ids of the GPUs, one a rank; none means the CPU. ports: of the
        ranks' rendezvous and of rank 0's server, kept free by the caller; without them any that are free now are
        taken, which somebody else may take before the ranks have loaded their modules.
        """
        if config.train_dp_size < 1:
            raise ValueError("train_dp_size must be filled in; see TrainerConfig.with_dp")
        out = Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        master_port, control_port = ports or _free_ports()
        spec = TrainerSpec(
            config=config,
            model_path=str(Path(model_path).resolve()),
            master_port=master_port,
            control_port=control_port,
            start_version=start_version,
            checkpoint=str(Path(checkpoint).resolve()) if checkpoint else "",
            timeout_s=timeout_s,
        )
        path = out / "trainer_spec.json"
        spec.write(path)
        argv = [python, "-m", "executor.trainer.worker", str(path)]
        started: list[ManagedProcess] = []
        try:
            for rank in range(spec.world_size):
                env = _environment(rank, devices)
                name = f"trainer rank {rank}"
                started.append(await ManagedProcess.start(name, argv, env, out / f"trainer_rank{rank}.log"))
        except BaseException:
            for process in started:
                process.kill()
            raise
        return cls(spec, started)

    @property
    def base_url(self) -> str:
        """Where rank 0 takes commands."""
        return f"http://{self.spec.master_address}:{self.spec.control_port}"

    async def died(self) -> str:
        """Wait until a rank ends, asked or not; one line that names it, its status and its last words."""
        waits = {asyncio.create_task(process.wait()): process for process in self.ranks}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
        finally:
            for task in waits:
                task.cancel()
        # The first to end by itself is the cause; the others end because it did.
        process = min((waits[task] for task in done), key=lambda p: (p.returncode == 0, self.ranks.index(p)))
        return f"{process.name} ended with status {process.returncode}: {_last_words(process)}"

    async def stop(self, grace_s: float = 10.0) -> None:
        """End all ranks; harmless where they have ended."""
        await asyncio.gather(*(process.stop(grace_s) for process in self.ranks))


def _environment(rank: int, devices: Sequence[int]) -> dict[str, str]:
    root = str(Path(executor.__file__).resolve().parents[1])
    env = {
        "RANK": str(rank),
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
        "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    # Ranks on a CPU share its cores: one thread each, or they fight.
    return env | ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if devices else {"OMP_NUM_THREADS": "1"})


def _last_words(process: ManagedProcess) -> str:
    lines = [line.strip() for line in process.log_tail(_LOG_LINES).splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'it said nothing'} (log: {process.log_path})"


def _free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on now, held together so that they differ."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
