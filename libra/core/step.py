"""One turn of the controller's loop: an event and the actions that it led to.

A step is what the drivers dispatch, what the record stores and what a replay compares. Actions are numbered
in order of issue: action i of a step has the id `first_action_id + i`, also where the step has none, so ids
stay dense over a run and need no column of their own in memory.
"""

from collections.abc import Sequence

from libra.core.actions import Action
from libra.core.events import Event
from libra.core.ids import ActionId, EventSeq
from libra.core.value import value


@value
class Step:
    """Event number `seq`, handled at `now_s` (seconds since the start of the run), and its actions.

    first_action_id: id of `actions[0]`; the next id to be given out where `actions` is empty.
    """

    seq: EventSeq
    now_s: float
    event: Event
    first_action_id: ActionId
    actions: Sequence[Action]
