"""launch/paper: every experiment is there, its commands are mhsh's, and its prices the plan's."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mhsh.cli.main import main
from mhsh.cli.parser import parse
from mhsh.inference import LoadedModel

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = re.findall(r"^(\w+)\|", (ROOT / "launch/paper").read_text(encoding="utf-8"), re.MULTILINE)

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def venv(make_venv: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this python and its mhsh."""
    folder = tmp_path_factory.mktemp("paper") / "environment"
    return make_venv(folder, python=f'exec {sys.executable} "$@"', mhsh=f'exec {sys.executable} -m mhsh "$@"')


def run(venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What takes more than the minute that a launcher has here."""
    command, environment = ["bash", "launch/paper", *arguments], os.environ | {"MHSH_VENV": str(venv)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def commands(launch: Launch, make_venv: Callable[..., Path], tmp_path: Path) -> dict[str, list[list[str]]]:
    """Those of every experiment, in words; without the table, whose prices take seconds each."""
    quick = make_venv(tmp_path / "environment", python="cat >/dev/null", mhsh="exit 1")
    done = launch("paper", "--dry-run", MHSH_VENV=str(quick))
    assert done.returncode == 0, done.stderr
    _, *parts = re.split(r"^(\w+):$", done.stdout, flags=re.MULTILINE)
    return {
        name: [shlex.split(line.split(" > ")[0]) for line in part.split("\n") if line.startswith("    mhsh ")]
        for name, part in zip(parts[::2], parts[1::2], strict=True)
    }


def test_every_experiment_is_a_list_of_valid_commands(commands: dict[str, list[list[str]]]) -> None:
    assert list(commands) == EXPERIMENTS
    different = {tuple(words) for part in commands.values() for words in part}
    assert len(different) > 50
    for _, name, *arguments in different:
        assert parse(name, arguments) is not None, arguments


def test_test_sets_are_decoded_as_the_authors_do(commands: dict[str, list[list[str]]]) -> None:
    """Transformer-Clinic at 70f72b7: eval_wmt_en-de.sh line 18, eval_iwslt_de-en.sh line 18 (where
    fairseq's length penalty is 1).
    """
    defaults = inspect.signature(LoadedModel.translate_lines).parameters
    for name, beam, penalty, translations in (("wmt", 4, 0.6, 2), ("gain", 4, 0.6, 4), ("iwslt", 5, 1.0, 10)):
        predictions = [words for words in commands[name] if words[1] == "predict"]
        assert len(predictions) == translations
        for words in predictions:
            given = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
            assert float(given.get("beam", defaults["beam"].default)) == beam
            assert float(given.get("length-penalty", defaults["length_penalty"].default)) == penalty
            assert given["average"] == "10"


def test_the_page_is_what_the_launcher_writes(launch: Launch, make_venv: Callable[..., Path], tmp_path: Path) -> None:
    """But for the prices, which take minutes: here the table is its input."""
    quick = make_venv(tmp_path / "environment", python="cat", mhsh="exit 1")
    done = launch("paper", "page", f"--out={tmp_path}/page.md", MHSH_VENV=str(quick))
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs/paper.md").read_text(encoding="utf-8").split("\n")
    written = (tmp_path / "page.md").read_text(encoding="utf-8").split("\n")
    rows = [line.split("|") for line in written if re.match(r"\w+\|", line)]
    assert [line for line in page if not line.startswith("|")] == [line for line in written if not re.match(r"\w+\|", line)]
    for line, (name, claim, figure, recipe, source, _, here) in zip([line for line in page if "| `" in line], rows, strict=True):
        cells = line.strip("| ").split(" | ")
        assert (*cells[:4], cells[6], cells[8]) == (f"`{name}`", claim, recipe, source, figure, here)


@pytest.fixture(scope="module")
def table() -> ModuleType:
    """benchmarks/paper_table.py."""
    specification = importlib.util.spec_from_file_location("paper_table", ROOT / "benchmarks/paper_table.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_figures_of_fine_tunings_stand_beside_parameters_and_flops(table: ModuleType, tmp_path: Path) -> None:
    assert ", F1" not in table.Figures(tmp_path).obtained("squad_v1")
    summary = tmp_path / "squad-v1-144l1h/summary.json"
    summary.parent.mkdir()
    summary.write_text(json.dumps({"figures": {"f1": {"mean": 88.54}}}))
    said = table.Figures(tmp_path).obtained("squad_v1")
    found = re.search(r"144l1h (\d+)M, ([\d.e+]+), F1 88\.5;", said)
    assert found is not None and said.count(";") == 3
    # BERT-base has 110M; a token costs 6 FLOPs a parameter of the layers (85.7M) and the scores':
    # three epochs of 87,599 questions, three seeds.
    assert 108 <= int(found[1]) <= 112
    scores = 3 * 4 * 384 * 768 * 12  # of a token, in 12 layers of twelve heads or 144 of one
    expected = 3 * 3 * 87_599 * 384 * (6 * 85.7e6 + scores)
    assert float(found[2]) == pytest.approx(expected, rel=0.15)  # the rest: heads, and questions in several windows


def test_positions_have_both_measures(table: ModuleType, tmp_path: Path) -> None:
    attention = {"layers": [4.0, 6.0], "argmax_layers": [1.0, 2.0], "argmax_stack": [1.0, 3.0], "visible": 12.0}
    document = {"models": [{"result": {"encoder": {"attention": attention}}}] * 2}
    for first in ("12l12h-phase2", "24l16h-phase2", "6l8h"):
        (tmp_path / f"positions-{first}.json").write_text(json.dumps(document))
    assert "384l1h-phase2 5 and 25%, 6l8h 5 and 25%" in table.Figures(tmp_path).obtained("positions")


@pytest.mark.slow
def test_the_price_is_the_plans(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(venv, "wmt", "--dry-run")
    (row,) = [line for line in done.stdout.split("\n") if line.startswith("| `wmt`")]
    assert main(["plan", "--config=translation:6l8h", "--chips=v5e:16"]) == 0
    printed = re.search(r"chip hours +([\d.]+) - ([\d.]+)", capsys.readouterr().out)
    assert printed is not None
    assert row.split(" | ")[4].split(", ")[0] == "-".join(f"{float(hours):.0f}" for hours in printed.groups())


def test_what_is_no_experiment_is_refused(launch: Launch, venv: Path) -> None:
    for arguments, said in (
        (["bert"], "bert is unknown; experiments: example wmt"),
        (["--scale=2"], "--scale=2 is not above 0 and at most 1"),
        (["--config.data.source=text:a"], "is the data of one experiment; name it"),
    ):
        done = launch("paper", *arguments, MHSH_VENV=str(venv))
        assert done.returncode == 2 and said in done.stderr


@pytest.mark.slow
def test_everything_runs_at_a_thousandth(venv: Path, tmp_path: Path) -> None:
    done = run(venv, "--scale=0.001", f"--workdir={tmp_path}/paper")
    rows = [line.split(" | ") for line in done.stdout.split("\n") if line.startswith("| `")]
    assert [row[0].strip("|` ") for row in rows] == EXPERIMENTS
    assert all("scaled 0.001, no result" in row[7] for row in rows)
