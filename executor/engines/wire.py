"""Requests and answers of an engine as it sees them: pure, from and to JSON.

An answer comes as a stream of messages, each a few tokens. They are kept as bytes and parsed together at the end,
or when the turn breaks off: parsing each as it comes would cost the driver several times as much.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from executor.engines.errors import PromptTooLong, RequestRefused

UNKNOWN_VERSION: Final = -1
_TOO_LONG = ("maximum model length", "maximum context length", "is longer than the maximum", "max_model_len")


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One turn. temperature 0 is greedy. priority: lower first, 0 unless the engine orders by it.

    allowed_token_ids: none = all. ignore_eos: generate exactly max_tokens tokens (unless a stop token comes).
    """

    request_id: str
    token_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    priority: int = 0
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Output tokens [start, end) were made by the weights of `version` (-1: not stamped)."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """What was generated, all of it or what there was when the turn broke off.

    logprobs: of each token under the weights that made it, before temperature and restrictions.
    finish_reason: stop, length, abort, error, or `broken` for a partial one. version_spans: empty where the engine
    does not tell. cached_tokens: prompt tokens found in its prefix cache, -1 if unknown. message_ends: number of
    tokens after each message of the stream. Times are on the caller's clock; nan where it never came to that.
    queue_s: time in the engine's queue, none where it does not tell.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: str = "broken"
    version_spans: tuple[VersionSpan, ...] = ()
    cached_tokens: int = -1
    message_ends: tuple[int, ...] = field(default=(), repr=False)
    submitted_at: float = float("nan")
    first_token_at: float = float("nan")
    ended_at: float = float("nan")
    queue_s: float | None = None

    def versions(self, otherwise: int = UNKNOWN_VERSION) -> list[int]:
        """Weight version of each token; `otherwise` where the engine did not stamp one."""
        versions = [otherwise] * len(self.token_ids)
        for span in self.version_spans:
            if span.version != UNKNOWN_VERSION:
                versions[span.start : span.end] = [span.version] * (span.end - span.start)
        return versions


def _sampling(request: GenerateRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "logprobs": 0,  # of the sampled token alone
        "skip_special_tokens": False,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if request.stop_token_ids:
        body["stop_token_ids"] = list(request.stop_token_ids)
    if request.allowed_token_ids is not None:
        body["allowed_token_ids"] = list(request.allowed_token_ids)
    if request.ignore_eos:
        body["ignore_eos"] = True
    return body


def generate_body(request: GenerateRequest) -> dict[str, Any]:
    """For `/inference/v1/generate`."""
    return {
        "request_id": request.request_id,
        "token_ids": list(request.token_ids),
        "sampling_params": {**_sampling(request), "detokenize": False},
        "stream": True,
        "stream_options": {"include_usage": True},
        "priority": request.priority,
    }


def completions_body(request: GenerateRequest, model: str) -> dict[str, Any]:
    """For `/v1/completions`, where there is nothing better."""
    return {
        "model": model,
        "request_id": request.request_id,
        "prompt": list(request.token_ids),
        **_sampling(request),
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "priority": request.priority,
    }


def score_body(token_ids: Sequence[int], request_id: str) -> dict[str, Any]:
    """For `/inference/v1/generate`: log-probs of a given sequence."""
    return {
        "request_id": request_id,
        "token_ids": list(token_ids),
        "sampling_params": {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False},
    }


def score_completions_body(token_ids: Sequence[int], request_id: str, model: str) -> dict[str, Any]:
    """As `score_body`, for `/v1/completions`."""
    return {
        "model": model,
        "request_id": request_id,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
    }


def read_scores(answer: dict[str, Any], token_ids: Sequence[int]) -> list[float]:
    """Log-prob of each token but the first, given those before it."""
    table = answer.get("prompt_logprobs") or answer["choices"][0]["prompt_logprobs"]
    return [float(table[i][str(token)]["logprob"]) for i, token in enumerate(token_ids) if i > 0]


def read_messages(messages: Sequence[bytes], base_url: str) -> dict[str, Any]:
    """Fields of `GenerateResult` out of the messages of a stream (or of one whole answer).

    `error`: a `RequestRefused`, where one of them is an error.
    """
    token_ids: list[int] = []
    logprobs: list[float] = []
    found: dict[str, Any] = {}
    ends: list[int] = []
    for message in json.loads(b"[" + b",".join(messages) + b"]"):
        if message.get("error"):
            found["error"] = refusal(base_url, message, int(message["error"].get("code") or 500))
            continue
        for choice in message.get("choices", ()):
            token_ids += choice.get("token_ids") or ()
            logprobs += _logprobs(choice.get("logprobs"))
            if choice.get("finish_reason"):
                found["finish_reason"] = choice["finish_reason"]
            if choice.get("weight_versions"):
                found["version_spans"] = tuple(_span(span) for span in choice["weight_versions"])
        ends.append(len(token_ids))
        details = (message.get("usage") or {}).get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            found["cached_tokens"] = int(details["cached_tokens"])
        queue_ms = (message.get("metrics") or {}).get("queue_time_ms")
        if queue_ms is not None:
            found["queue_s"] = queue_ms / 1e3
    return found | {
        "token_ids": tuple(token_ids),
        "logprobs": tuple(logprobs),
        "message_ends": tuple(ends),
    }


def _logprobs(table: dict[str, Any] | None) -> list[float]:
    """Of either endpoint: `content` with one entry a token, or `token_logprobs`."""
    if not table:
        return []
    if table.get("content") is not None:
        return [entry["logprob"] for entry in table["content"]]
    return [float("nan") if value is None else value for value in table.get("token_logprobs") or ()]


def _span(span: dict[str, Any]) -> VersionSpan:
    return VersionSpan(read_version(span["version"]), int(span["start"]), int(span["end"]))


def read_version(text: object) -> int:
    """The version that was stamped as a text; -1 for what nobody of us stamped (`default`)."""
    try:
        return int(str(text))
    except ValueError:
        return UNKNOWN_VERSION


def error_text(answer: object) -> str:
    """The first line of what an engine says is wrong."""
    text: object = answer
    if isinstance(answer, dict):
        text = answer.get("error") or answer.get("detail") or answer.get("message") or answer
        if isinstance(text, dict):
            text = text.get("message", text)
    lines = str(text).strip().splitlines()
    return lines[0] if lines else "no reason given"


def refusal(where: str, answer: object, status: int) -> RequestRefused:
    """The error that an engine's answer with a bad status means; `where` begins the message."""
    text = error_text(answer)
    kind = PromptTooLong if status == 400 and any(hint in text for hint in _TOO_LONG) else RequestRefused
    return kind(f"{where}: refused with status {status}: {text}", status)
