"""What several system tests need: the command line, and its complaint as one line."""

import pytest

from sim.cli.main import main
from tests.system.tiny import files_below


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs the command line in a fresh folder and returns the single line of its complaint.

    Demands exit status 2, silence on stdout and nothing new, changed or missing on disk.
    """
    monkeypatch.chdir(tmp_path)

    def run(*argv) -> str:
        before = files_below(tmp_path)
        capsys.readouterr()
        assert main([str(part) for part in argv]) == 2
        captured = capsys.readouterr()
        assert files_below(tmp_path) == before
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert len(lines) == 1, captured.err
        assert lines[0].startswith("error: ")
        return lines[0].removeprefix("error: ")

    return run
