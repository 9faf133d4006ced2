"""What the driver holds of a replica over its lives: the engine of the moment and what it is about."""

import asyncio
from typing import Any

from executor.engines.client import ModelInfo
from executor.engines.launch import ReplicaPlan
from executor.engines.replica import RealReplica
from executor.engines.slots import SlotLedger
from executor.engines.turns import Turn
from libra.core import events as ev
from libra.core.ids import ActionId


class Life:
    """`replica` is None while it is down, starting included. Turns are in the order in which they were sent."""

    def __init__(self, plan: ReplicaPlan, max_num_seqs: int) -> None:
        self.plan = plan
        self.max_num_seqs = max_num_seqs
        self.replica: RealReplica | None = None
        self.starting = False
        self.going: asyncio.Task[Any] | None = None  # the end of the life before
        self.loading = asyncio.Lock()
        self.slots = SlotLedger(max_num_seqs)
        self.turns: dict[ActionId, Turn] = {}
        self.pending: set[ActionId] = set()  # loads and drains
        self.drains: list[ActionId] = []
        self.tasks: set[asyncio.Task[Any]] = set()  # that end with the replica
        self.max_model_len = 0
        self.kv_capacity_tokens = -1

    def refusal(self, tp: int) -> str:
        """Why it cannot be started now; empty if it can."""
        if self.replica is not None or self.starting:
            return "it is running or starting"
        if tp != self.plan.tp:
            return f"its plan says tp {self.plan.tp}, not {tp}"
        return ""

    async def wait_gone(self) -> None:
        """Until nothing is left of the engine before."""
        if self.going is not None:
            await asyncio.wait({self.going})

    def begin(self, replica: RealReplica, model: ModelInfo) -> None:
        """A healthy engine serves from now on."""
        self.replica = replica
        self.loading = asyncio.Lock()
        self.slots = SlotLedger(self.max_num_seqs)
        self.tasks = set()
        self.max_model_len = model.max_model_len
        self.kv_capacity_tokens = model.kv_capacity_tokens

    def add_task(self, task: "asyncio.Task[Any]") -> None:
        """It ends with the replica."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def ready_event(self, action_id: ActionId) -> ev.ReplicaReady:
        """It accepts turns."""
        assert self.replica is not None
        return ev.ReplicaReady(
            action_id,
            self.plan.replica_id,
            self.plan.tp,
            self.plan.node_id,
            self.replica.version,
            self.kv_capacity_tokens,
            self.max_num_seqs,
            self.max_model_len,
        )

    def end(self) -> tuple[list[Turn], list[ActionId]]:
        """It is down: its turns and pending actions, in order, which are the caller's to end from now on."""
        turns, pending = list(self.turns.values()), sorted(self.pending)
        self.turns, self.pending, self.drains = {}, set(), []
        current = asyncio.current_task()
        for task in list(self.tasks):
            if task is not current:
                task.cancel()
        self.tasks = set()
        return turns, pending
