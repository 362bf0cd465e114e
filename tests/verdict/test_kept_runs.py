"""What docs/evidence.md and README print is what `mhsh compare` says of the kept runs."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from mhsh.cli.compare import CompareOptions, make_report

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = {"budget 540": "0.6", "budget 850": "2", "budget 1800": "2", "budget 2550": "6", "budget 5400": "6", "budget 8500": "20"}
# By stage its name on the page, its shape of one head a layer, the tokens a parameter where it has
# no other length.
STAGES = {
    "multi30k_whole": ("translation, RAdam", "16-16x1 admin", "5"),
    "trained_muon": ("Admin, Muon", "24x1 admin", ""),
    "trained": ("Admin, AdamW", "24x1 admin", "21"),
    "decoder": ("standard decoder, Muon", "24x1 pre_ln", ""),
    "decided": ("standard decoder, Muon, finer rates", "24x1 pre_ln", "20"),
    "wider": ("standard decoder, twice as wide, Muon", "24x1 pre_ln", "6"),
    "books": ("standard decoder on novels, Muon", "24x1 pre_ln", "6"),
}
CHOOSING = {"decided": 4}  # seeds; the others have two
IN_README = {("decided", "20"), ("trained", "21"), ("multi30k_whole", "5")}
IN_VERDICTS = {("trained", "2"), ("trained_muon", "6"), ("multi30k_whole", "5")}


@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=() if stage == "multi30k_whole" else pytest.mark.slow) for stage in STAGES]
)
def test_every_row_of_the_page_is_a_row_of_the_comparison(stage: str, tmp_path: Path) -> None:
    with tarfile.open(ROOT / f"docs/study/runs/{stage}.tar.xz") as kept:
        kept.extractall(tmp_path, filter="data")
    report = make_report(CompareOptions([str(tmp_path / stage)], over="lr", choosing_seeds=CHOOSING.get(stage, 2)))
    pages = ("docs/evidence.md", "README.md", "docs/study/verdicts.md")
    page, readme, verdicts = ((ROOT / name).read_text(encoding="utf-8") for name in pages)
    name, shape, whole = STAGES[stage]
    expected = []
    for table in report.results:
        (cells,) = (
            dict(zip((column.name for column in table.columns), row.full_cells, strict=True))
            for row in table.rows
            if row.full_cells[0].text == shape
        )
        tokens, difference = LENGTHS.get(table.section, whole), cells["difference"]
        words = f"{difference.text} ({difference.note})".replace("\u2212", "-")
        bold = f"**{words}**" if difference.mark else words
        expected.append(f"| {name} | {tokens} | {bold} | {cells['tokens to equal loss'].words.replace(chr(215), '')} |")
        assert (stage, tokens) not in IN_README or words in readme
        assert (stage, tokens) not in IN_VERDICTS or words.partition(" ")[2] in verdicts
    assert sorted(line.replace("| |", "|  |") for line in page.splitlines() if line.startswith(f"| {name} |")) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "section", "shape"), [("decided", "", "24x1 pre_ln"), ("trained_muon", "budget 5400", "24x1 admin")]
)
def test_the_price_in_flops_is_that_of_the_comparison(stage: str, section: str, shape: str, tmp_path: Path) -> None:
    with tarfile.open(ROOT / f"docs/study/runs/{stage}.tar.xz") as kept:
        kept.extractall(tmp_path, filter="data")
    report = make_report(CompareOptions([str(tmp_path / stage)], over="lr", choosing_seeds=CHOOSING.get(stage, 2)))
    (ratio,) = (
        cell.words.replace(chr(215), "")
        for table in report.tables
        for row in table.rows
        for column, cell in zip(table.columns, row.full_cells, strict=True)
        if table.title.startswith(section) and (row.full_cells[0].text, column.name) == (shape, "FLOPs to equal loss")
    )
    assert ratio in " ".join((ROOT / "docs/study/findings.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("stage", ["copying", "example", "recall", "recall_longer", "recall_two"])
def test_what_is_said_of_a_stage_is_what_the_comparison_says(stage: str, tmp_path: Path) -> None:
    with tarfile.open(ROOT / f"docs/study/runs/{stage}.tar.xz") as kept:
        kept.extractall(tmp_path, filter="data")
    by = ["heads_per_layer"] if stage == "example" else []
    tables = make_report(CompareOptions([str(tmp_path / stage)], by=by, over="lr", choosing_seeds=2)).results
    said = " ".join((ROOT / "docs/study/findings.md").read_text(encoding="utf-8").split())
    assert len(tables) == (3 if by else 1)
    for columns, row in ((table.columns, row) for table in tables for row in table.rows[1:]):
        cells = dict(zip((column.name for column in columns), row.full_cells, strict=True))
        difference = cells["difference"]
        bounds = f"({difference.note.partition(':')[0]}".replace("\u2212", "-")  # a missing bound is explained behind a colon
        assert f"{difference.text} {bounds}".replace("\u2212", "-") in said, row.full_cells[0].text
