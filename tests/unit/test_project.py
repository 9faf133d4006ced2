"""What the project promises of itself: slim imports, short files, commands that exist."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("libra", "sim", "executor", "benchmarks", "tools")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
HEAVY = ("torch", "vllm", "ray", "megatron", "matplotlib", "pandas")


def test_importing_the_packages_loads_nothing_heavy():
    code = f"import sys, libra, sim; print([m for m in {HEAVY} if m in sys.modules], libra.__file__, sim.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"[] {ROOT / 'libra/__init__.py'} {ROOT / 'sim/__init__.py'}\n"


def test_simulating_loads_no_engine():
    code = f"import sys, sim.simulation; print([m for m in {HEAVY[:4]} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno < 70, (
                f"{node.name} has {node.end_lineno - node.lineno + 1} lines"
            )


def test_readme_and_ci_name_commands_that_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for file in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        named = set(re.findall(r"^make ([a-z]+)", (ROOT / file).read_text(), flags=re.MULTILINE))
        assert named, file
        assert named <= targets, file
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_links_of_the_documents_lead_somewhere():
    for file in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\(([^)#:]+)", file.read_text()):
            assert (ROOT / target).exists(), f"{file.name}: {target}"
