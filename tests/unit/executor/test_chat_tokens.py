"""Tokens of observations, with a tokenizer of bytes and three special tokens.

`tests/real/test_chat_tokens.py` does the same with transformers and the template of the tiny model.
"""

import re
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.environments.base import Message, Observation
from executor.environments.chat import ChatTokens
from libra.errors import UserError

SPECIAL = {"<s>": 256, "</s>": 257, "<t>": 258}
NAMES = {token: name for name, token in SPECIAL.items()}
END = SPECIAL["</s>"]


class ByteTokenizer:
    """As much of a transformers tokenizer as is used."""

    all_special_ids = tuple(NAMES)
    chat_template: str | None = "yes"

    def __len__(self):
        return 259

    def __call__(self, text, *, add_special_tokens, split_special_tokens):
        assert not add_special_tokens
        parts = [text] if split_special_tokens else re.split("(<s>|</s>|<t>)", text)
        ids = [i for part in parts for i in ([SPECIAL[part]] if part in SPECIAL else part.encode())]
        return SimpleNamespace(input_ids=ids)

    def decode(self, ids, skip_special_tokens=False):
        out = b""
        for token in ids:
            out += bytes([token]) if token < 256 else b"" if skip_special_tokens else NAMES[token].encode()
        return out.decode("utf-8", "replace")

    def apply_chat_template(self, messages, *, tools, tokenize, add_generation_prompt, suffix=""):
        assert not tokenize
        text = f"<t>{len(tools)}\n" if tools else ""
        text += "".join(f"<s>{m['role']}\n{m['content']}</s>\n" for m in messages)
        return text + (f"<s>assistant\n{suffix}" if add_generation_prompt else "")


def tokens(template: str | None = "yes", **options):
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = template
    return ChatTokens(tokenizer, [END], options)


def read(ids):
    return ByteTokenizer().decode(ids)


def test_first_prompts_in_each_form():
    chat = tokens()
    messages = (Message("system", "be brief"), Message("user", "hi </s>"))
    ids = chat.first_prompt(Observation(messages=messages, tools=({"name": "x"},)))
    assert read(ids) == "<t>1\n<s>system\nbe brief</s>\n<s>user\nhi </s></s>\n<s>assistant\n"
    assert ids.count(END) == 2  # what the user wrote is spelt out
    assert chat.first_prompt(Observation(text="a</s>")) == list(b"a</s>")
    assert chat.first_prompt(Observation(token_ids=(7, END))) == [7, END]
    assert read(tokens(suffix="<think>").first_prompt(Observation(messages=messages))).endswith("<think>")


def test_the_assistants_message_is_ended_once():
    chat = tokens()
    result = Observation(messages=(Message("tool", "42"),))
    whole = "</s>\n<s>tool\n42</s>\n<s>assistant\n"
    assert read(chat.next_prompt(result, [65, 66])) == whole
    assert read(chat.next_prompt(result, [65, END])) == whole.removeprefix("</s>")
    assert chat.next_prompt(Observation(text="=42\n"), [65, END]) == list(b"=42\n")


@given(st.text())
def test_a_payload_cannot_speak_as_the_template_does(payload):
    ids = tokens().next_prompt(Observation(messages=(Message("tool", payload),)), [65])
    specials = [NAMES[token] for token in ids if token in NAMES]
    assert specials == ["</s>", "<s>", "</s>", "<s>"]
    assert payload.encode() in bytes(token for token in ids if token < 256)


@given(st.lists(st.integers(0, 300), max_size=20))
def test_every_token_can_be_read(ids):
    text = tokens().decode(ids)
    assert text.count("\ufffd") >= sum(token >= 259 for token in ids)


def test_generated_text():
    chat = tokens()
    assert chat.decode([97, 300, 301, 98, END]) == "a\ufffd\ufffdb"
    assert chat.decode([0xC3, 0xA4, 300, 0xC3]) == "ä\ufffd\ufffd"


def test_allowed_characters_are_tokens_of_these_alone():
    chat = tokens()
    assert chat.allowed_token_ids("10+") == (43, 48, 49, END)
    with pytest.raises(UserError, match="allowed_characters 'ä': no token"):
        chat.allowed_token_ids("ä")


@pytest.mark.parametrize(("length", "ids"), [(0, [1]), (259, [])])
def test_an_empty_tokenizer_is_refused(tmp_path, monkeypatch, length, ids):
    class Tokenizer(ByteTokenizer):
        eos_token_id = END

        def __len__(self):
            return length

        def __call__(self, text, **_):
            return SimpleNamespace(input_ids=ids)

    def serve(kind):
        loader = SimpleNamespace(from_pretrained=lambda path, **_: kind())
        monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=loader))

    serve(Tokenizer)
    with pytest.raises(
        UserError, match=r"its tokenizer makes no tokens of 'a 1'; copy the tokenizer's files"
    ):
        ChatTokens.load(tmp_path)
    serve(type("Whole", (ByteTokenizer,), {"eos_token_id": END}))
    assert ChatTokens.load(tmp_path).encode("a") == [97]


def test_models_that_cannot_chat_are_refused(tmp_path):
    observation = Observation(messages=(Message("user", "hi"),))
    assert not tokens(None).has_chat_template
    with pytest.raises(UserError, match="has no chat template; set chat: false"):
        tokens(None).first_prompt(observation)
    forgetful = tokens()
    forgetful._tokenizer.apply_chat_template = lambda messages, **_: "hello"
    with pytest.raises(UserError, match="leaves out a message of user"):
        forgetful.first_prompt(observation)
    with pytest.raises(UserError, match="cannot go on after a tool"):
        forgetful.next_prompt(observation, [65])
    with pytest.raises(UserError, match="no such folder"):
        ChatTokens.load(tmp_path / "absent")
