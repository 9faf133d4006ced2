"""What a tool call ends with. A call that fails or runs out of time is a result like any other."""

from dataclasses import dataclass

from libra.core.ids import ToolStatus


@dataclass(frozen=True, slots=True)
class ToolResult:
    """status: decided by the exit code and the clock, never by words of the output.

    payload: what the model is shown. latency_s: from the call to its end, waiting for a free place included.
    exit_code: of the tool's process, 128 + N where signal N ended it; None after a timeout or without a process.
    """

    status: ToolStatus
    payload: str
    latency_s: float
    exit_code: int | None = None
