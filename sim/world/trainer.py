"""The trainer: one step at a time, then a publication. The `TrainerPort` of the simulator."""

from collections.abc import Callable

from libra.core import events as ev
from libra.core.actions import PublishWeights, StartTrainStep
from libra.core.ids import ActionId, WeightVersion
from libra.ports import Emit
from sim.clock import Clock, to_seconds, to_ticks


class SimTrainer:
    """See the module. `step_s(num_tokens, num_trajectories)` and `publish_s` come from the cost model."""

    def __init__(
        self, clock: Clock, step_s: Callable[[int, int], float], publish_s: float, emit: Emit
    ) -> None:
        self._clock = clock
        self._step_s = step_s
        self._publish_t = to_ticks(publish_s)
        self._emit = emit
        self._version = 0
        self.published_version = WeightVersion(0)

    def start_step(self, action_id: ActionId, action: StartTrainStep) -> None:
        """See `TrainerPort`."""
        start_t = self._clock.now

        def done() -> None:
            self._version += 1
            self._emit(
                ev.TrainStepFinished(
                    action_id,
                    WeightVersion(self._version),
                    action.num_trajectories,
                    action.num_tokens,
                    to_seconds(start_t),
                    to_seconds(self._clock.now),
                )
            )

        self._clock.call_later(
            max(1, to_ticks(self._step_s(action.num_tokens, action.num_trajectories))), done
        )

    def publish(self, action_id: ActionId, action: PublishWeights) -> None:
        """See `TrainerPort`."""
        start_t = self._clock.now

        def done() -> None:
            self.published_version = action.version
            self._emit(
                ev.WeightsPublished(
                    action_id, action.version, to_seconds(start_t), to_seconds(self._clock.now)
                )
            )

        self._clock.call_later(self._publish_t, done)
