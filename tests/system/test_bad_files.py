"""Files and folders that are not what they should be: one line that says which and what to do, nothing lost."""

import json
import os
import pickle
import shutil

import pytest

from libra.config.document import load_document
from libra.config.resolve import resolve
from libra.errors import UserError
from sim.cli.main import main
from sim.config import SimConfig
from tests.system.tiny import files_below, write_experiment

YAML = {
    "empty": ("", "tiny.yaml: the file is empty"),
    "a list": ("- 1\n", "tiny.yaml: an experiment is a mapping of keys to values"),
    "never closed": ("a: [1,\nb: 2\n", "tiny.yaml: not YAML (line 3: "),
    "tab": ("a:\n\t- b\n", "tiny.yaml: not YAML (line 2: "),
    "control character": ("name: a\0b\n", "tiny.yaml: not YAML ("),
    "key twice": ("name: a\nseed: 1\nname: b\n", "tiny.yaml:3: name is given twice; keep one"),
    "key twice below": ("a: {b: 1,\n b: 2}\n", "tiny.yaml:2: b is given twice; keep one"),
    "list as a key": ("name: a\n? [1, 2]\n: 4\n", "tiny.yaml:2: a key is a word or a number"),
    "unknown tag": ("name: a\nseed: !foo 4\n", "tiny.yaml:2: !foo '4' cannot be read; remove the tag"),
    "python tag": (
        "seed: !!python/name:os.system ''\n",
        "tiny.yaml:1: tag:yaml.org,2002:python/name:os.system",
    ),
    "number that is none": ("seed: !!int x\n", "tiny.yaml:1: tag:yaml.org,2002:int 'x' cannot be read"),
    "date": ("name: 2020-01-01\n", "tiny.yaml:1: 2020-01-01 reads as a date; put it in quotes"),
    "merge key": ("name: a\n<<: {seed: 1}\n", "tiny.yaml:2: merge keys (<<) are not read; use base_config"),
    "alias of itself": ("name: &a [*a]\n", "tiny.yaml:1: an alias holds itself; write the value out"),
    "number as a key": ("4: 4\n", "tiny.yaml:1: 4: unknown key; known keys: name,"),
    "base that is missing": ("base_config: no.yaml\n", "tiny.yaml:1: base_config: there is no file no.yaml"),
    "base that is a folder": ("base_config: .\n", "tiny.yaml:1: base_config: there is no file ."),
    "two bases": ("base_config: [a, b]\n", "tiny.yaml:1: base_config must be the path of one file"),
    "base of itself": (
        "base_config: tiny.yaml\n",
        "tiny.yaml: base_config goes in a circle: tiny.yaml -> tiny.yaml",
    ),
}


@pytest.mark.parametrize(("text", "expected"), YAML.values(), ids=YAML)
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_an_experiment_that_cannot_be_read(refused, tmp_path, verb, text, expected):
    (tmp_path / "tiny.yaml").write_text(text, encoding="utf-8")
    assert refused(verb, "tiny.yaml").startswith(expected)


def test_a_circle_of_two_files(refused, tmp_path):
    (tmp_path / "a.yaml").write_text("base_config: b.yaml\n", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("base_config: a.yaml\n", encoding="utf-8")
    assert refused("run", "a.yaml") == "a.yaml: base_config goes in a circle: a.yaml -> b.yaml -> a.yaml"


def test_a_mistake_in_the_base_names_the_base(refused, tmp_path):
    write_experiment(tmp_path, {"totl_steps": 3}, "base.yaml")
    (tmp_path / "tiny.yaml").write_text("base_config: base.yaml\nseed: 3\n", encoding="utf-8")
    assert refused("run", "tiny.yaml").startswith("base.yaml:21: totl_steps: unknown key")


def test_a_folder_with_a_colon_is_still_the_trace_s_folder(tmp_path):
    path = write_experiment(tmp_path / "at 12:30")
    resolved = resolve(load_document(path), {"sim": SimConfig})
    assert resolved.workload_folder == tmp_path / "at 12:30"


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_not_an_experiment_file(refused, tmp_path, verb):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert refused(verb, "binary.yaml") == "binary.yaml: not UTF-8 text (byte 0)"
    assert refused(verb, ".") == ".: this is a folder; name an experiment file (*.yaml)"
    assert refused(verb, "none.yaml") == "none.yaml: there is no such file"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run and a sweep of one cell."""
    folder = tmp_path_factory.mktemp("made")
    path = write_experiment(folder)
    assert main(["run", str(path), "--out", str(folder / "run")]) == 0
    assert main(["sweep", str(path), "--out", str(folder / "sweep"), "--jobs", "1", "--no-report"]) == 0
    return folder


@pytest.fixture
def copied(made, tmp_path):
    """That folder, to do with as one likes."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


OUT = {
    "run there": (["run"], "run", "exists already"),
    "run into a sweep": (["run"], "sweep", "exists already"),
    "run over a file": (["run"], "turns.csv", "exists already"),
    "run below a file": (["run"], "turns.csv/x", "cannot be made (Not a directory)"),
    "run where nothing may be written": (["run"], "/proc/x", "cannot be made"),
    "run under a name too long": (["run"], "a" * 300, "File name too long"),
    "fresh run over a sweep": (
        ["run", "--fresh"],
        "sweep",
        "holds no manifest.json, so --fresh does not remove",
    ),
    "fresh run over a file": (["run", "--fresh"], "turns.csv", "holds no manifest.json"),
    "sweep of another experiment": (
        ["sweep", "--set", "seed=5"],
        "sweep",
        "another experiment; give another --out",
    ),
    "sweep into a run": (["sweep"], "run", "is not empty and holds no sweep; give another --out"),
    "sweep over a file": (["sweep"], "turns.csv", "is not empty and holds no sweep; give another --out"),
    "sweep below a file": (["sweep"], "turns.csv/x", "cannot be written (Not a directory)"),
    "sweep where nothing may be written": (["sweep"], "/proc/x", "cannot be written"),
    "sweep under a name too long": (["sweep"], "a" * 300, "File name too long"),
    "fresh sweep over a run": (
        ["sweep", "--fresh"],
        "run",
        "holds no sweep.json, so --fresh does not remove",
    ),
}


@pytest.mark.parametrize(("argv", "out", "expected"), OUT.values(), ids=OUT)
def test_an_out_that_cannot_be_used(refused, copied, argv, out, expected):
    message = refused(*argv, "tiny.yaml", "--out", out)
    assert message.startswith(out[:200])
    assert expected in message


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema_version": 1, "world": "x", "config_sha256": "0"}']
)
@pytest.mark.parametrize(("verb", "marker"), [("run", "manifest.json"), ("sweep", "sweep.json")])
def test_fresh_removes_nothing_whose_marker_is_of_another_program(refused, tmp_path, verb, marker, content):
    write_experiment(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / marker).write_text(content)
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    message = refused(verb, "--fresh", "tiny.yaml", "--out", "out")
    assert (
        message == f"out/{marker}: is not of this program, so --fresh does not remove it; give another --out"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_an_out_without_permission(refused, tmp_path, verb):
    write_experiment(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "Permission denied" in refused(verb, "tiny.yaml", "--out", "closed/x")


def test_a_sweep_made_by_other_code_is_not_continued(refused, copied):
    path = copied / "sweep" / "sweep.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(described | {"code_hash": "0"}), encoding="utf-8")
    message = refused("sweep", "tiny.yaml", "--out", "sweep", "--no-report")
    assert (
        message
        == "sweep: holds the sweep of another version of the code; give another --out, or --fresh to replace it"
    )


@pytest.mark.parametrize("verb", ["report", "replay", "compare", "validate", "check"])
@pytest.mark.parametrize("given", ["nothing", ".", "tiny.yaml"])
def test_a_verb_that_reads_finds_nothing_to_read(refused, tmp_path, verb, given):
    write_experiment(tmp_path)
    message = refused(verb, given, *([given] if verb == "compare" else []))
    assert "; " in message


DAMAGE = {
    "not JSON": ("nope", "damaged"),
    "no object": ("[]", "holds no object; run it again"),
    "no version": ("{}", "schema_version None, this program reads 2"),
    "later version": ('{"schema_version": 99}', "schema_version 99, this program reads 2"),
    "half of it": ('{"schema_version": 2}', "lacks 'level'; run it again"),
}


@pytest.mark.parametrize("verb", ["report", "replay", "compare", "validate"])
@pytest.mark.parametrize(("text", "expected"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_manifest(refused, copied, verb, text, expected):
    (copied / "run" / "manifest.json").write_text(text, encoding="utf-8")
    message = refused(verb, "run", *(["run"] if verb == "compare" else []))
    assert message.startswith("run/manifest.json: ")
    assert expected in message


@pytest.mark.parametrize("verb", ["sweep", "report"])
def test_a_damaged_sweep_file(refused, copied, verb):
    (copied / "sweep" / "sweep.json").write_text("{", encoding="utf-8")
    argv = ["tiny.yaml", "--out", "sweep", "--no-report"] if verb == "sweep" else ["sweep"]
    assert refused(verb, *argv).startswith("sweep/sweep.json: ")


def test_a_summary_holds_no_events_to_replay(refused, copied, capsys):
    assert main(["run", "tiny.yaml", "--out", "brief", "--record", "summary"]) == 0
    message = refused("replay", "brief")
    assert message.endswith("not recorded, the run has only its summary; record with level full")


@pytest.mark.parametrize("out", ["turns.csv/x", "/proc/x"])
def test_a_report_that_cannot_be_written(refused, copied, out):
    assert refused("report", "run", "--out", out).startswith(f"{out}: cannot be written (")


def test_show_config_runs_nothing(copied, monkeypatch, capsys):
    monkeypatch.chdir(copied)
    before = files_below(copied)
    for verb in ("run", "sweep"):
        assert main([verb, "tiny.yaml", "--set", "seed=7", "--show-config"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert "batch_size = 4  # tiny.yaml:8" in shown
        assert "cluster.num_nodes = 1  # tiny.yaml:5" in shown
        assert any(line.startswith("sim.engine = 'skip'  # default") for line in shown)
        assert any(line.startswith("seed = 7  # ") for line in shown)
    assert files_below(copied) == before


def test_an_error_crosses_process_borders_as_it_is():
    """Workers of a sweep send theirs by pickle."""
    assert str(pickle.loads(pickle.dumps(UserError("a: b")))) == "a: b"
