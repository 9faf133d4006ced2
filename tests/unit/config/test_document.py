"""Files into trees: inheritance, overrides, values as they are meant, and where each came from."""

from pathlib import Path

import pytest

from libra.config.document import Document, apply_overrides, apply_sets, load_document
from libra.errors import UserError


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / f"{next(iter(files))}.yaml"


def tree_of(tmp_path, text: str):
    return load_document(write(tmp_path, a=text)).tree


def test_mappings_merge_and_everything_else_is_replaced(tmp_path):
    path = write(
        tmp_path,
        child="base_config: base.yaml\na: {y: 2}\nlist: [9]\nplain: {z: 1}\n",
        base="a: {x: 1, y: 1}\nlist: [1, 2]\nplain: 5\nkept: yes\n",
    )
    assert load_document(path).tree == {"a": {"x": 1, "y": 2}, "list": [9], "plain": {"z": 1}, "kept": True}


def test_bases_build_on_bases_relative_to_themselves(tmp_path):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep", middle="base_config: ../bottom.yaml\nb: 2\n")
    path = write(tmp_path, top="base_config: deep/middle.yaml\nc: 3\n", bottom="a: 1\nb: 1\n")
    document = load_document(path)
    assert document.tree == {"a": 1, "b": 2, "c": 3}
    assert document.origin(("a",)).endswith("bottom.yaml:1")
    assert document.origin(("b",)).endswith("middle.yaml:2")
    assert document.origin(("c",)) == f"{path}:2"


def test_the_origin_of_what_has_no_line_is_that_of_what_holds_it(tmp_path):
    path = write(tmp_path, a="x:\n  - {y: 1}\n  - {y: 2}\n")
    document = load_document(path)
    assert document.origin(("x", 1, "y")) == f"{path}:3"
    assert document.origin(("x", 1, "missing")) == f"{path}:3"
    assert document.origin(("x", 7)) == f"{path}:1"
    assert document.origin(("nothing",)) == str(path)
    assert Document().origin(("nothing",)) == "the experiment"


def test_a_relative_name_belongs_to_the_file_that_gives_it(tmp_path):
    (tmp_path / "base").mkdir()
    write(tmp_path / "base", base="workload: {path: t.csv}\n")
    path = write(tmp_path, top="base_config: base/base.yaml\nname: x\n")
    document = load_document(path)
    assert document.folder_of(("workload", "path")) == tmp_path / "base"
    assert document.folder_of(("other",)) == tmp_path
    apply_sets(document, ["workload.path=u.csv"])
    assert document.folder_of(("workload", "path")) == Path()
    apply_overrides(document, {"workload.path": "v.csv"}, f"{path}:1: axis=point")
    assert document.folder_of(("workload", "path")) == tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1e6),
        ("1.5e-3", 1.5e-3),
        ('"1e6"', "1e6"),
        ("e", "e"),
        ("1", 1),
        ("1.0", 1.0),
        ("true", True),
        ("null", None),
        ("0x10", 16),
        ("word", "word"),
        ('"1"', "1"),
    ],
)
def test_values_are_read_as_they_are_meant(tmp_path, text, value):
    read = tree_of(tmp_path, f"x: {text}\n")["x"]
    assert read == value
    assert type(read) is type(value)


def test_keys_are_the_text_that_the_file_shows(tmp_path):
    assert tree_of(tmp_path, "on: 1\n4: 2\nno: 3\n1.50: 4\n") == {"on": 1, "4": 2, "no": 3, "1.50": 4}


def test_aliases_are_written_out(tmp_path):
    tree = tree_of(tmp_path, "a: &x {k: 1}\nb: *x\n")
    tree["b"]["k"] = 2
    assert tree["a"] == {"k": 1}


def test_sets_apply_in_order_and_replace_whole_sections():
    document = Document({"a": {"b": {"c": 1, "d": 2}}})
    apply_sets(document, ["a.b.c=5", "a.b={e: [1, 2]}", "new.deep.key=x", "a.z= 1e3"])
    assert document.tree == {"a": {"b": {"e": [1, 2]}, "z": 1000.0}, "new": {"deep": {"key": "x"}}}
    assert document.origin(("a", "b", "e")) == "--set a.b"


def test_a_copy_is_independent():
    document = Document({"a": {"b": [1, {"c": 2}]}})
    copied = document.copy()
    copied.tree["a"]["b"][1]["c"] = 3
    copied.replace("x", 1, "test")
    assert document.tree == {"a": {"b": [1, {"c": 2}]}}
    assert document.origins == {}


def test_overrides_do_not_share_their_values():
    first, second, value = Document(), Document(), {"k": [1]}
    for document in (first, second):
        apply_overrides(document, {"a": value}, "axis")
    first.tree["a"]["k"].append(2)
    assert second.tree == {"a": {"k": [1]}}


def test_a_value_is_no_section():
    with pytest.raises(UserError, match=r"^here: a\.b\.c: a\.b is a value, not a section; set a\.b itself$"):
        Document({"a": {"b": 1}}).replace("a.b.c", 2, "here")


def test_null_drops_a_section_of_the_base(tmp_path):
    path = write(
        tmp_path,
        child="base_config: middle.yaml\na: {x: null, v: null}\nlist:\nnew: null\n",
        middle="base_config: base.yaml\na: {y: null}\n",
        base="a:\n  x: {k: 1}\n  y: {k: 2}\n  z: {k: 3}\n  v: 5\nlist: [1, 2]\n",
    )
    document = load_document(path)
    assert document.tree == {"a": {"z": {"k": 3}, "v": None}, "new": None}
    assert document.origin(("a", "x", "k")) == f"{path}:2", "who dropped it is to blame for what is missing"
    assert document.origin(("list",)) == f"{path}:3"
    assert document.origin(("a", "z", "k")).endswith("base.yaml:4")


def test_null_on_the_command_line_drops_a_section_and_is_a_value_elsewhere():
    document = Document({"a": {"b": {"c": 1}, "list": [1], "d": 2}})
    apply_sets(document, ["a.b=null", "a.list=", "a.d=null", "a.e=null"])
    assert document.tree == {"a": {"d": None, "e": None}}
    assert document.origin(("a", "b", "c")) == "--set a.b"
