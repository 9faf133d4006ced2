"""Texts and token ids: what an environment says, in the model's own tokens, and what the model said, as text.

Guarantees that a context only grows: `first_prompt` and `next_prompt` give tokens to append, and what a model has
generated is never tokenised again. What a tool returned cannot speak as the chat template does: special tokens in it
are spelt out. A token without a text (a vocabulary may be larger than its tokenizer) shows as U+FFFD.

transformers is loaded when a tokenizer is, not when this module is.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from executor.environments.base import Message, Observation
from libra.errors import UserError

_NO_TEXT: Final = "\ufffd"
_PROBE: Final = "a 1"
_PLACEHOLDER: Final = "\ue000{}\ue001"
"""Stands for a message's content while the template is rendered: characters of the private use area."""


class ChatTokens:
    """The tokenizer of one model. Make it with `load`.

    stop_token_ids: what ends a turn. template_options: passed to the chat template, such as `enable_thinking`.
    """

    def __init__(
        self, tokenizer: Any, stop_token_ids: Sequence[int], template_options: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._options = dict(template_options or {})
        self._known = len(tokenizer)
        self.stop_token_ids = tuple(stop_token_ids)

    @classmethod
    def load(cls, model_path: str | Path, template_options: Mapping[str, Any] | None = None) -> "ChatTokens":
        """The tokenizer in a Hugging Face model folder; nothing is downloaded. Raises UserError."""
        path = Path(model_path)
        if not path.is_dir():
            raise UserError(f"model {path}: no such folder; name a folder with a model and its tokenizer")
        from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]

        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:  # whatever a broken file brings about in there
            line = str(error).strip().split("\n")[0]
            raise UserError(
                f"model {path}: its tokenizer cannot be read ({type(error).__name__}: {line})"
            ) from error
        return cls(tokenizer, _stop_token_ids(path, tokenizer), template_options).checked(path)

    def checked(self, path: Path) -> "ChatTokens":
        """These, if they have a vocabulary: transformers makes an empty tokenizer of a folder without one.

        Raises UserError.
        """
        if not self._known or not self.encode(_PROBE):
            raise UserError(
                f"model {path}: its tokenizer makes no tokens of {_PROBE!r}; copy the tokenizer's files of this "
                "model into it"
            )
        return self

    @property
    def has_chat_template(self) -> bool:
        """Whether observations may be messages."""
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str, *, plain: bool = False) -> list[int]:
        """Tokens of `text` without any that a tokenizer adds by itself. plain: special tokens are spelt out."""
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=plain).input_ids
        return [int(token) for token in ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated tokens. Special tokens have none."""
        pieces: list[str] = []
        for known, run in groupby(token_ids, key=lambda token: 0 <= token < self._known):
            ids = list(run)
            pieces.append(
                self._tokenizer.decode(ids, skip_special_tokens=True) if known else _NO_TEXT * len(ids)
            )
        return "".join(pieces)

    def first_prompt(self, observation: Observation) -> list[int]:
        """Tokens of a trajectory's first prompt. Raises UserError for messages where there is no template."""
        if not observation.messages:
            return self._bare(observation)
        marks = _marks(observation.messages)
        tools = [dict(tool) for tool in observation.tools] or None
        return self._filled(self._render(marks, tools, prompt=True), observation.messages)

    def next_prompt(self, observation: Observation, context: Sequence[int]) -> list[int]:
        """Tokens to append to `context`, which ends with what the model generated.

        With messages the assistant's message is ended first, unless the model has done so itself.
        """
        if not observation.messages:
            return self._bare(observation)
        ending, frame = self._continuation(tuple(message.role for message in observation.messages))
        closing = self.encode(ending)
        if closing and context and context[-1] in self.stop_token_ids:
            closing = closing[1:]
        return [*closing, *self._filled(frame, observation.messages)]

    @lru_cache(maxsize=16)  # noqa: B019 - one of these lives as long as the run
    def allowed_token_ids(self, characters: str) -> tuple[int, ...]:
        """Tokens made of these characters alone, and those that end a turn. Raises UserError if there is none."""
        wanted = set(characters)
        special = set(self._tokenizer.all_special_ids)
        found = [
            token
            for token in range(self._known)
            if token not in special and (text := self._tokenizer.decode([token])) and set(text) <= wanted
        ]
        if not found:
            raise UserError(
                f"allowed_characters {characters!r}: no token of the model is made of these alone"
            )
        return tuple(sorted({*found, *self.stop_token_ids}))

    def _bare(self, observation: Observation) -> list[int]:
        return (
            list(observation.token_ids)
            if observation.token_ids
            else self.encode(observation.text, plain=True)
        )

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any, *, prompt: bool) -> str:
        if not self.has_chat_template:
            raise UserError(
                "the model's tokenizer has no chat template; set chat: false in workload.environment, "
                "or take a model that has one"
            )
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt, **self._options
            )
        )

    @lru_cache(maxsize=16)  # noqa: B019 - as above
    def _continuation(self, roles: tuple[str, ...]) -> tuple[str, str]:
        """What ends an assistant's message, and the frame of the messages after it with the next generation prompt.

        Templates only render whole chats, so both are the difference of two renderings.
        """
        said = _PLACEHOLDER.format("said")
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": said}]
        marks = _marks([Message(role, "") for role in roles])
        before = self._render(chat, None, prompt=False)
        after = self._render([*chat, *marks], None, prompt=True)
        ending = before.partition(said)[2]
        frame = after.partition(said)[2]
        if said not in before or not frame.startswith(ending):
            raise UserError("the model's chat template cannot go on after a tool; set chat: false")
        return ending, frame.removeprefix(ending)

    def _filled(self, frame: str, messages: Sequence[Message]) -> list[int]:
        """The rendered frame with each message's content as plain text in the place of its mark."""
        tokens: list[int] = []
        for i, message in enumerate(messages):
            before, mark, frame = frame.partition(_PLACEHOLDER.format(i))
            if not mark:
                raise UserError(
                    f"the model's chat template leaves out a message of {message.role}; set chat: false"
                )
            tokens += self.encode(before) + self.encode(message.content, plain=True)
        return tokens + self.encode(frame)


def _marks(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [{"role": message.role, "content": _PLACEHOLDER.format(i)} for i, message in enumerate(messages)]


def _stop_token_ids(path: Path, tokenizer: Any) -> tuple[int, ...]:
    """The tokenizer's end of turn and those of the model's generation settings."""
    found: list[int] = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    settings = path / "generation_config.json"
    if settings.is_file():
        try:
            given = json.loads(settings.read_text()).get("eos_token_id")
        except (ValueError, AttributeError) as error:
            raise UserError(f"model {path}: generation_config.json is no JSON object ({error})") from error
        found += given if isinstance(given, list) else [] if given is None else [given]
    return tuple(dict.fromkeys(found))
