"""vLLM's own schedulers with a step log. Imported by the engine's process only, by `scheduler_cls`.

The class to name is the logged form of the one that the engine would use by itself: with asynchronous scheduling
that is `LoggedAsyncScheduler`, and a subclass of the plain one would silently give up overlapping.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import atexit
import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from benchmarks.gpu.step_log import LOG_VARIABLE, Step, StepLog, now_s, phase_and_case, work_of


class _Logged:
    """Mixin, before a scheduler class: what is logged, and when."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = Path(os.environ[LOG_VARIABLE])
        self._log = StepLog(path)
        self._pending: dict[
            int, Step
        ] = {}  # by identity of the scheduler's output, which lives until its update
        self._label = ("other", "")
        self._number = 0
        atexit.register(self._log.flush)
        path.with_suffix(".json").write_text(json.dumps(_facts(self)) + "\n")

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """As the engine's own, timed."""
        start_s = now_s()
        output = super().schedule(*args, **kwargs)
        end_s = now_s()
        new, cached = output.scheduled_new_reqs, output.scheduled_cached_reqs
        if new:
            self._label = phase_and_case(new[-1].req_id)
        self._number += 1
        num_running, num_waiting = self.get_request_counts()
        self._pending[id(output)] = Step(
            self._label,
            self._number,
            start_s,
            end_s,
            work_of(
                output.num_scheduled_tokens,
                ((request.req_id, request.num_computed_tokens) for request in new),
                zip(cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True),
            ),
            (
                len(new),
                len(cached.resumed_req_ids),
                len(output.preempted_req_ids or ()),
                num_running,
                num_waiting,
            ),
            self.kv_cache_manager.usage,
        )
        return output

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        """As the engine's own; it is called when the model's part of the step has been handed over."""
        step = self._pending.get(id(scheduler_output))
        if step is not None:
            step.launched_s = now_s()
        return super().get_grammar_bitmask(scheduler_output)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As the engine's own, timed; completes the row."""
        start_s = now_s()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        end_s = now_s()
        step = self._pending.pop(id(scheduler_output), None)
        if step is not None:
            self._log.add(step.line(start_s, end_s), idle=not self.has_unfinished_requests())
        return outputs

    def shutdown(self) -> None:
        """As the engine's own."""
        self._log.flush()
        super().shutdown()


class LoggedScheduler(_Logged, Scheduler):
    """For an engine that schedules a step when the one before is done."""


class LoggedAsyncScheduler(_Logged, AsyncScheduler):
    """For an engine that schedules a step while the one before runs."""


def _facts(scheduler: Any) -> dict[str, Any]:
    """What the client cannot see from its own process."""
    config = scheduler.vllm_config
    return {
        "scheduler": f"{type(scheduler).__module__}.{type(scheduler).__name__}",
        "scheduler_bases": [base.__name__ for base in type(scheduler).__mro__[1:4]],
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "kv_blocks": scheduler.kv_cache_config.num_blocks,
        "block_tokens": config.cache_config.block_size,
        "scheduler_pid": os.getpid(),
        "clock_s": now_s(),
    }
