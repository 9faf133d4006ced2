"""The tiny model overwrites what it made itself, and nothing else. What it makes is tested in tests/real."""

import json
import struct

import numpy as np
import pytest

from executor import tiny_model
from executor.tiny_model import make_tiny_model
from libra.errors import UserError


def write_weights(path, metadata):
    header = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.fixture(autouse=True)
def light(monkeypatch):
    """Without tokenizers and safetensors: weights are their table of contents."""
    monkeypatch.setattr(tiny_model, "_write_tokenizer", lambda out, length: None)

    def save(tensors, path, metadata):
        assert all(isinstance(tensor, np.ndarray) for tensor in tensors.values())
        write_weights(path, metadata)

    module = type("safetensors", (), {"save_file": staticmethod(save)})
    monkeypatch.setitem(__import__("sys").modules, "safetensors", module)
    monkeypatch.setitem(__import__("sys").modules, "safetensors.numpy", module)


def test_its_own_model_is_overwritten(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new", tmp_path / "empty"):
        make_tiny_model(folder)
        assert json.loads((folder / "config.json").read_text())["vocab_size"] == 512
        make_tiny_model(folder, vocab_size=600)
        assert json.loads((folder / "config.json").read_text())["vocab_size"] == 600


@pytest.mark.parametrize("weights", [None, {"format": "pt"}, b"", b"\xff" * 20])
def test_anything_else_is_left_alone(tmp_path, weights):
    """A model that was trained from a tiny one has its small files, and weights that are not of this tool."""
    make_tiny_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.unlink()
    if isinstance(weights, bytes):
        file.write_bytes(weights)
    elif weights is not None:
        write_weights(file, weights)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        UserError, match=r"holds something that was not made here; name a new folder, or remove"
    ):
        make_tiny_model(tmp_path, vocab_size=600)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_of_that_name_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file holds something that was not made here"):
        make_tiny_model(tmp_path / "file")
