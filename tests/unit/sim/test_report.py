"""The report's files: complete, alone, escaped, repeatable."""

import json
import re
from html.parser import HTMLParser

import pytest

from libra.errors import UserError
from sim.report import write_report


class Page(HTMLParser):
    """Text, sources and the balance of tags."""

    VOID = frozenset({"meta", "img"})

    def __init__(self, html):
        super().__init__()
        self.text, self.links, self.open, self.images = [], [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag == "img":
            self.images.append(dict(attrs)["alt"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(path):
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sweep_report(sweep_dir, tmp_path_factory):
    return write_report(sweep_dir, tmp_path_factory.mktemp("report") / "new" / "folder")


def test_sweep_report_has_page_figures_and_timeline(sweep_report):
    folder = sweep_report.parent
    assert sweep_report.name == "report.html"
    names = {path.name for path in (folder / "figures").iterdir()}
    assert names == {
        "gantt.png",
        "latency_cdf.png",
        "latency_cdf_1.png",
        "throughput.png",
        "utilisation.png",
    }
    trace = json.loads((folder / "timeline.json").read_text())
    assert {"trainer", "replica 0 (TP 1, node 0)"} <= {
        e["args"].get("name") for e in trace["traceEvents"] if "args" in e
    }


def test_page_stands_alone(sweep_report):
    page = read(sweep_report)
    assert page.open == []
    assert len(page.links) == 5
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert not re.search(r"@import|url\(|<script", sweep_report.read_text())


def test_page_tells_verdict_failure_and_provenance(sweep_report):
    text = " ".join(read(sweep_report).text)
    assert "more output tokens/s than slow on layout mixed" in text
    assert "trace.csv:3: <column> is missing" in text
    assert "<column>" not in sweep_report.read_text()
    assert "1 of 24 cells failed" in text
    for word in ("experiment hash", "eeeeeeee", "policy=slow, layout=mixed, seed=0"):
        assert word in text


def test_same_inputs_same_bytes_and_old_figures_go(sweep_dir, sweep_report, tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "latency_cdf_9.png").write_bytes(b"old")
    again = write_report(sweep_dir, tmp_path)
    assert again.read_bytes() == sweep_report.read_bytes()
    for name in ("timeline.json", "figures/gantt.png"):
        assert (again.parent / name).read_bytes() == (sweep_report.parent / name).read_bytes()
    assert not (tmp_path / "figures" / "latency_cdf_9.png").exists()


def test_run_report_goes_beside_the_data_by_default(make_run, tmp_path):
    run = make_run(tmp_path / "run", name="a <b> & c")
    path = write_report(run)
    assert path == run / "report.html"
    page = read(path)
    text = " ".join(page.text)
    assert "a <b> & c" in text
    assert "ended after" in text
    assert "rollout wait [s]" in text
    assert len(page.images) == 3
    assert (run / "timeline.json").is_file()


def test_a_run_that_was_cut_off_says_so(make_run, tmp_path):
    told = "This run was ended before its work was done"
    run = make_run(tmp_path / "run", level="summary")
    assert told not in " ".join(read(write_report(run)).text)
    manifest = json.loads((run / "manifest.json").read_text()) | {"exit_reason": "time_limit"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert told in " ".join(read(write_report(run)).text)


def test_summary_only_sweep_says_what_it_cannot_show(make_sweep, tmp_path):
    sweep = make_sweep(tmp_path / "s", {"slow": 1.0, "fast": 1.5}, level="summary")
    (sweep / "timeline.json").write_text("of an earlier report")
    path = write_report(sweep)
    text = " ".join(read(path).text)
    assert "Recorded as summaries only" in text
    assert "fast makes" in text
    assert [found.name for found in (sweep / "figures").iterdir()] == ["throughput.png"]
    assert not (sweep / "timeline.json").exists()


def test_summary_only_run_has_its_figures_of_merit(make_run, tmp_path):
    path = write_report(make_run(tmp_path / "run", level="summary"))
    text = " ".join(read(path).text)
    assert "Recorded as summaries only" in text
    assert "tail share" in text


def test_sweep_with_nothing_but_failures_still_reports(make_sweep, tmp_path):
    path = write_report(make_sweep(tmp_path / "s", {"a": 1.0}, seeds=1, failed=[("a", "mixed", 0)]))
    text = " ".join(read(path).text)
    assert "No cell has finished." in text
    assert "trace.csv:3" in text


def test_mixed_code_is_pointed_out(make_sweep, tmp_path):
    sweep = make_sweep(tmp_path / "s", {"slow": 1.0, "fast": 1.5}, seeds=1, level="summary")
    manifest = sweep / "cells" / "policy=fast,layout=mixed,seed=0" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"code_hash": "other"}))
    assert "different versions of the code" in " ".join(read(write_report(sweep)).text)


def test_no_data_and_no_room_are_the_users_to_mend(run_dir, tmp_path):
    with pytest.raises(UserError, match="holds neither"):
        write_report(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .*give another --out"):
        write_report(run_dir, tmp_path / "file")
