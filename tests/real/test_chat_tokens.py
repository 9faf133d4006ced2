"""The tokens of a chat with a real tokenizer and chat template, those of the tiny model."""

import pytest

from executor.environments.arithmetic import Arithmetic, ArithmeticConfig
from executor.environments.base import Message, Observation
from executor.environments.chat import ChatTokens
from executor.tiny_model import make_tiny_model
from libra.errors import UserError

pytest.importorskip("transformers")
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def chat(folder):
    return ChatTokens.load(folder)


def read(chat, ids):
    return chat._tokenizer.decode(ids)


def test_a_chat_with_a_tool_is_what_the_template_renders(chat):
    import numpy as np

    environment = Arithmetic(ArithmeticConfig(chat=True))
    episode = environment.reset(environment.tasks[0], np.random.default_rng(0))
    first = episode.first_prompt
    said = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
    context = chat.first_prompt(first)
    context += [*chat.encode(said), *chat.stop_token_ids]
    context += chat.next_prompt(Observation(messages=(Message("tool", "2"),)), context)
    messages = [{"role": message.role, "content": message.content} for message in first.messages]
    messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": "2"}]
    whole = chat._tokenizer.apply_chat_template(
        messages, tools=list(first.tools), tokenize=False, add_generation_prompt=True
    )
    assert read(chat, context) == whole
    assert context == chat.encode(whole)
    assert read(chat, context).endswith("<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n")


def test_texts_and_tokens(chat):
    assert chat.stop_token_ids == (258,)
    text = "aä€ <|im_end|> <tool_call>"
    assert chat.decode(chat.encode(text, plain=True)) == text
    assert 258 in chat.encode(text)
    assert 258 not in chat.encode(text, plain=True)
    assert 258 in chat.encode(text)  # the switch holds for one call
    assert chat.decode([*chat.encode("ab"), 300, 511, *chat.encode("c"), 258]) == "ab\ufffd\ufffdc"
    allowed = chat.allowed_token_ids("0123456789+-*")
    assert len(allowed) == 14
    assert set(chat.decode(allowed)) == set("0123456789+-*")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(UserError, match="its tokenizer cannot be read"):
        ChatTokens.load(tmp_path)
