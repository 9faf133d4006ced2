"""What can go wrong between the driver and an engine, as types: no exception of the HTTP library leaves this package.

Every message is one line and begins with the engine's address or the replica's name.
"""

from libra.errors import UserError


class EngineError(Exception):
    """An engine did not do what was asked of it."""


class EngineUnreachable(EngineError):
    """No connection, or it broke off: the engine is gone, going, or was never there."""


class EngineTimeout(EngineError):
    """The engine is there but did not answer within the time given."""


class RequestRefused(EngineError):
    """The engine answered with an error. `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class PromptTooLong(RequestRefused):
    """The prompt leaves no room for a single token in the model's context."""


class FeatureMissing(EngineError):
    """The engine has no such endpoint; the message names it and the flag that would bring it."""


class LoadFailed(EngineError):
    """A weight refresh went wrong at `stage`.

    torn: weights may be partly replaced, so that the engine must not serve; else it serves the old ones.
    """

    def __init__(self, message: str, stage: str, torn: bool, late: bool) -> None:
        super().__init__(message)
        self.stage = stage
        self.torn = torn
        self.late = late


class EngineStartError(UserError):
    """An engine did not come up. First line: which and why; then the last lines of its log."""
