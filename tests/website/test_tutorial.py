"""The tutorial: docs/tutorial.ipynb with its outputs."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from website.tutorial import COLOUR, SHELL, read_tutorial

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOK = DOCS / "tutorial.ipynb"
AGAIN = "run it again, as docs/development/testing.md says"


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_the_notebook_was_run_from_the_first_cell_to_the_last() -> None:
    assert [cell["execution_count"] for cell in cells("code")] == list(range(1, len(cells("code")) + 1)), AGAIN
    outputs = [output for cell in cells("code") for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not re.search(r"/(home|root|tmp|work|Users)/|Traceback|Warning", json.dumps(outputs))


def test_the_page_of_the_site_has_what_the_cells_printed_and_drew() -> None:
    tutorial = read_tutorial(NOTEBOOK)
    assert all(picture.startswith(b"\x89PNG") for picture in tutorial.pictures.values())
    assert re.findall(r"!\[.*?\]\((.*?)\)", tutorial.markdown) == list(tutorial.pictures)
    for cell in cells("code"):
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        assert COLOUR.sub("", printed).strip() in tutorial.markdown
    assert "\x1b" not in tutorial.markdown


def test_what_the_cells_import_from_mhsh_is_there() -> None:
    code = "\n".join("".join(cell["source"]) for cell in cells("code") if not "".join(cell["source"]).startswith(SHELL))
    imports = [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom) and str(node.module).startswith("mhsh")
    ]
    assert len(imports) >= 5
    for node in imports:
        module = importlib.import_module(str(node.module))
        for name in node.names:
            assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")


def test_the_cells_can_be_run_again() -> None:
    """What a probe has written is in the way of the next one."""
    probes = [cell for cell in map("".join, (each["source"] for each in cells("code"))) if "mhsh probe" in cell]
    assert probes and all(re.search(r"rm -f (\S+)\.\*\nmhsh probe .* --out=\1\.json", cell) for cell in probes)


@pytest.mark.slow  # stands in for it: the tests above, of the outputs that are kept
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the docs extra")
    nbformat = pytest.importorskip("nbformat", reason="needs the docs extra")
    shutil.copy(NOTEBOOK, tmp_path)
    for name in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS"):  # of the tests, which train little
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    notebook = nbformat.read(tmp_path / NOTEBOOK.name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "runs/tutorial/report.html").exists()
    assert (tmp_path / "runs/tutorial/coverage.png").exists()
