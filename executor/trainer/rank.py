"""One rank of the trainer, as `executor.trainer.worker` runs it.

Guarantees: rank 0 takes commands over HTTP, all ranks carry out each of them together; a command that is refused
leaves them waiting for the next, and any other error ends the rank, whose closed connections end the others. Started
under the launcher's guard, no rank outlives its driver.
"""

import dataclasses
import os
import sys
import traceback
import warnings
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

from executor.trainer import megatron_cpu
from executor.trainer.batch import TrainBatch, pack_arrays
from executor.trainer.spec import TrainerSpec
from libra.errors import UserError

_IDLE_S = 60.0
"""An idle rank 0 sends the others a word this often, well within the time they wait for one."""


def main(argv: list[str]) -> int:
    """Run one rank until it is told to stop; the process's exit status."""
    if len(argv) != 1:
        sys.stderr.write("usage: RANK=N python -m executor.trainer.worker SPEC.json\n")
        return 2
    try:
        _run(TrainerSpec.read(argv[0]), int(os.environ.get("RANK", "0")))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _run(spec: TrainerSpec, rank: int) -> None:
    # Said once in the notes; in the log they would stand where a failure's last words belong.
    warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine|full scope is deprecated)")
    import torch
    import torch.distributed as dist

    from executor.trainer.transfer import rendezvous_store

    megatron_cpu.install()
    torch.manual_seed(spec.config.seed)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    timeout = timedelta(seconds=spec.timeout_s)
    address, port = spec.master_address, spec.master_port
    store = rendezvous_store(address, port, spec.world_size, spec.timeout_s, listen=rank == 0)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=spec.world_size,
        timeout=timeout,
    )
    try:
        _serve(spec)
    finally:
        dist.destroy_process_group()


def _serve(spec: TrainerSpec) -> None:
    import torch.distributed as dist

    from executor.trainer.model import init_ranks
    from executor.trainer.server import Command, Server
    from executor.trainer.training import Trainer
    from executor.trainer.transfer import DirectTransfer

    place = init_ranks(spec.config, spec.timeout_s)
    trainer = Trainer(spec, place)
    transfer = DirectTransfer()
    server: Server | None = None
    if place.rank == 0:
        for note in trainer.notes:
            sys.stderr.write(f"{note}\n")

        def health() -> dict[str, Any]:
            return {"version": trainer.version, "notes": list(trainer.notes), "world_size": spec.world_size}

        # Answering means ready: the port opens when the weights are there.
        server = Server(spec.master_address, spec.control_port, transfer, health)
    while True:
        taken = server.next(_IDLE_S) if server else None
        order: list[Any] = [taken[0] if taken else Command("idle", {}, b"")]
        dist.broadcast_object_list(order, 0, group=place.control)
        command, answer = order[0], taken[1] if taken else Future()
        try:
            answer.set_result(_obey(trainer, transfer, command))
        except UserError as error:
            answer.set_exception(error)
        except Exception as error:
            traceback.print_exc()
            answer.set_exception(error)
            raise
        if command.name == "stop":
            if server:
                server.close()
            return


def _obey(trainer: Any, transfer: Any, command: Any) -> Any:
    """Carry out one command on this rank; what rank 0 answers."""
    given = command.arguments
    if command.name == "step":
        return dataclasses.asdict(trainer.step(TrainBatch.from_bytes(command.body), given["version"]))
    if command.name == "logprobs":
        return pack_arrays(trainer.logprobs(TrainBatch.from_bytes(command.body).samples))
    if command.name == "save":
        trainer.save(given["folder"])
    elif command.name == "publish":
        if given["version"] != trainer.version:
            raise UserError(
                f"trainer: version {given['version']} cannot be published at version {trainer.version}"
            )
        if given["mode"] == "disk":
            trainer.write_weights(given["folder"])
        else:
            transfer.hold(given["version"], trainer.gather_weights())
    return {}
