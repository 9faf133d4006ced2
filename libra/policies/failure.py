"""A policy that fails, in one line: what was raised, and the line of the policy that raised it.

Only looked at when something was raised, so that asking a policy costs nothing more.
"""

from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any, NoReturn, cast, get_args

from libra.core.actions import Action
from libra.core.events import Event
from libra.core.invariants import InvariantViolation
from libra.errors import PolicyError

_ACTIONS: tuple[type[Any], ...] = get_args(Action)
NOTHING_YET: Any = object()


def name_of(policy: type[Any]) -> str:
    """`module:Class`, as an experiment would name it."""
    return f"{policy.__module__}:{policy.__qualname__}"


def asking(policy: object, seq: int, now_s: float, event: Event) -> str:
    """Which policy was asked, and about what."""
    return f"policy {name_of(type(policy))} at seq {seq}, t={now_s:.6g}s, on {type(event).__name__}"


def raise_policy_error(
    error: BaseException, action: object, policy: object, seq: int, now_s: float, event: Event
) -> NoReturn:
    """Raise PolicyError where asking `policy` about `event` raised `error`; call it from the handler of `error`.

    action: the item of the answer at which it was raised, NOTHING_YET before the first.
    """
    raise PolicyError(
        f"policy {name_of(type(policy))} failed at seq {seq}, t={now_s:.6g}s, on {type(event).__name__}: "
        f"{_bad_answer(error, action) or described(error, type(policy).__module__)}"
    ) from error


def ignored_by(policy: object) -> frozenset[type]:
    """Event types that a policy wants not to be asked about. Raises PolicyError if it names them in no set."""
    given: Any = getattr(policy, "ignores", ())
    if not isinstance(given, (frozenset, set, tuple, list)):
        raise PolicyError(
            f"policy {name_of(type(policy))}: `ignores` must be a frozenset of event types, not {given!r:.80}"
        )
    return frozenset(cast("Iterable[type]", given))


def breach(error: InvariantViolation) -> str:
    """A broken invariant in one line: its own text, and which policy was asked where the controller noted that."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"invariant {error} ({notes})" if notes else f"invariant {error}"


def described(error: BaseException, module: str) -> str:
    """`ExcType: msg (file:line)`, the place being the last that ran in the module of that name, else the last."""
    lines = str(error).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    places = [
        (frame.f_globals.get("__name__") == module, f"{frame.f_code.co_filename}:{line}")
        for frame, line in _frames(error.__traceback__)
        if not frame.f_code.co_filename.startswith("<frozen")  # the import system's own
    ]
    own = [place for is_own, place in places if is_own] or [place for _, place in places]
    return f"{text} ({own[-1]})" if own and not isinstance(error, SyntaxError) else text  # that names its own


def _bad_answer(error: BaseException, action: object) -> str:
    """What is wrong with the answer, where it is not a policy's own code that raised the error."""
    trace = error.__traceback__
    if trace is None:
        return ""
    mend = "; on_event must return an iterable of actions, () for none"
    if trace.tb_next is None:
        return f"it answered with no iterable ({error}){mend}"
    if action is NOTHING_YET or isinstance(action, _ACTIONS):
        return ""
    return f"its answer holds {repr(action)[:80]}, which is no action{mend}"


def _frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    found: list[tuple[FrameType, int]] = []
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return found
