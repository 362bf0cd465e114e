"""The paper's experiments: their commands are mhsh's, and the page has their prices."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.experiments.paper as paper
from benchmarks.experiments.commands import Commands
from benchmarks.experiments.paper_figures import SHAPES, Figures, price
from mhsh.cli.main import main
from mhsh.cli.parser import parse
from mhsh.inference import LoadedModel

ROOT = Path(__file__).resolve().parents[2]
CHIPS = (("v5e", 16), ("h100", 8))


@pytest.fixture
def commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Those of every experiment, in words."""
    monkeypatch.setattr(paper, "print_table", lambda *given: None)  # its prices take seconds each
    paper.main(["--dry-run"])
    _, *parts = re.split(r"^(\w+):$", capsys.readouterr().out, flags=re.MULTILINE)
    return {
        name: [shlex.split(line.split(" > ")[0]) for line in part.split("\n") if line.startswith("    mhsh ")]
        for name, part in zip(parts[::2], parts[1::2], strict=True)
    }


def test_every_experiment_is_a_list_of_valid_commands(commands: dict[str, list[list[str]]]) -> None:
    assert list(commands) == list(SHAPES)
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


def test_commands_go_on_where_they_stopped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.write_text("of the first time")
    Commands(dry=False).run("plan", output=there)
    assert there.read_text() == "of the first time"
    with pytest.raises(SystemExit) as ended:
        Commands(dry=False).run("nothing", output=missing)
    assert ended.value.code == 2 and "nothing" in capfd.readouterr().err
    assert not missing.exists()


def page_rows() -> dict[str, list[str]]:
    """The table of docs/paper.md."""
    rows = [
        line.strip("| ").split(" | ") for line in (ROOT / "docs/paper.md").read_text(encoding="utf-8").split("\n") if "| `" in line
    ]
    return {row[0].strip("`"): row for row in rows}


def test_the_page_has_every_experiment() -> None:
    assert list(page_rows()) == list(SHAPES)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_the_prices_of_the_page_are_the_plans(name: str) -> None:
    assert page_rows()[name][4:6] == [price(name, *chips) for chips in CHIPS]


@pytest.mark.slow
def test_the_price_is_what_mhsh_plan_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config=translation:6l8h", "--chips=v5e:16"]) == 0
    printed = re.search(r"chip hours +([\d.]+) - ([\d.]+)", capsys.readouterr().out)
    assert printed is not None
    assert price("wmt", "v5e", 16).split(", ")[0] == "-".join(f"{float(hours):.0f}" for hours in printed.groups())


def test_the_figures_of_fine_tunings_stand_beside_parameters_and_flops(tmp_path: Path) -> None:
    assert ", F1" not in Figures(tmp_path).results_of("squad_v1")
    summary = tmp_path / "squad-v1-144l1h/summary.json"
    summary.parent.mkdir()
    summary.write_text(json.dumps({"figures": {"f1": {"mean": 88.54}}}))
    said = Figures(tmp_path).results_of("squad_v1")
    found = re.search(r"144l1h (\d+)M, ([\d.e+]+), F1 88\.5;", said)
    assert found is not None and said.count(";") == 3
    # BERT-base has 110M; a token costs 6 FLOPs a parameter of the layers (85.7M) and the scores':
    # three epochs of 87,599 questions, three seeds.
    assert 108 <= int(found[1]) <= 112
    scores = 3 * 4 * 384 * 768 * 12  # of a token, in 12 layers of twelve heads or 144 of one
    expected = 3 * 3 * 87_599 * 384 * (6 * 85.7e6 + scores)
    assert float(found[2]) == pytest.approx(expected, rel=0.15)  # the rest: heads, and questions in several windows


def test_positions_have_both_measures(tmp_path: Path) -> None:
    attention = {"layers": [4.0, 6.0], "argmax_layers": [1.0, 2.0], "argmax_stack": [1.0, 3.0], "visible": 12.0}
    document = {"models": [{"result": {"encoder": {"attention": attention}}}] * 2}
    for first in ("12l12h-phase2", "24l16h-phase2", "6l8h"):
        (tmp_path / f"positions-{first}.json").write_text(json.dumps(document))
    assert "384l1h-phase2 5 and 25%, 6l8h 5 and 25%" in Figures(tmp_path).results_of("positions")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bert"], "bert is unknown; experiments: example wmt"),
        (["--epochs=3"], "--epochs=3 is unknown"),
        (["--scale=2"], "--scale=2 is not above 0 and at most 1"),
        (["--config.data.source=text:a"], "is the data of one experiment; name it"),
        (["glue"], "12l12h-phase2 is missing; run bert_base and bert_large first"),
        (["bert_base"], "which corpus? give --config.data.source=text:..."),
    ],
)
def test_what_cannot_run_is_refused(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        paper.main([*arguments, f"--workdir={tmp_path}"])
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.slow
def test_everything_runs_at_a_thousandth(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.experiments.paper", "--scale=0.001", f"--workdir={tmp_path}/paper"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.split(" | ") for line in done.stdout.split("\n") if line.startswith("| `")]
    assert [row[0].strip("|` ") for row in rows] == list(SHAPES)
    assert all("scaled 0.001, no result" in row[3] for row in rows)
