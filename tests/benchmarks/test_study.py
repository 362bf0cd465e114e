"""The study: which commands a stage becomes, that every stage is a plan, what the page keeps."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import benchmarks.experiments.study as study
from benchmarks.experiments.commands import Commands
from benchmarks.experiments.study_page import BESIDE, PARTS, write_page
from mhsh.cli.main import main

ROOT = Path(__file__).resolve().parents[2]

Commanded = Callable[..., list[list[str]]]


@pytest.fixture
def commanded(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """commanded("probes"): the words of every command of a stage, as --dry-run prints them."""
    monkeypatch.setattr(study, "Commands", lambda dry: Commands(dry=True))

    def run(*arguments: str) -> list[list[str]]:
        study.main([*arguments, f"--workdir={tmp_path}/study"])
        return [shlex.split(line.split(" > ")[0])[1:] for line in capsys.readouterr().out.splitlines()]

    return run


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        study.main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def begin(folder: Path, *stages: str) -> None:
    for stage in stages:
        (folder / stage / "runs/a").mkdir(parents=True, exist_ok=True)
        (folder / stage / "runs/a/run.json").touch()


def report_of(sweep: Path, names: list[str]) -> list[str]:
    """Writes the names of its reporting runs; their folders."""
    sweep.mkdir(parents=True)
    curves = {"runs": [{"name": name, "curves": {}} for name in names]}
    (sweep / "report.json").write_text(json.dumps({"report": {"curves": curves}}))
    return [f"{sweep}/runs/{name}" for name in names]


def test_a_stage_is_a_sweep_which_reports_itself(commanded, tmp_path):
    (sweep,) = commanded("width", "--parallel=2")
    assert sweep == [
        "sweep",
        "--config=study:base",
        "--axes",
        "layers_at_equal_size=3,1,6,12,24",
        "lr=5e-4,1e-3,2e-3,4e-3,8e-3",
        "seed=0,1,2,3,4,5,6",
        f"--workdir={tmp_path}/study/width",
        "--over=lr",
        "--choosing-seeds=2",
        "--parallel=2",
        "--dry-run",
    ]
    (sweep,) = commanded("heads_own", "--config.train.num_steps=2")  # its own fields come before those given
    assert sweep[-3:] == ["--config.model.fans=own", "--config.train.num_steps=2", "--dry-run"]


@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=() if stage in ("pre_ln", "stability") else pytest.mark.slow) for stage in study.STAGES]
)
def test_every_stage_is_a_plan(commanded, monkeypatch, capsys, stage):
    monkeypatch.chdir(ROOT)
    (sweep,) = commanded(stage)
    assert main(sweep) == 0
    assert re.search(r"^ *in all +\d+", capsys.readouterr().out, re.MULTILINE)


def test_probes_look_into_the_reporting_runs_of_every_shape(commanded, tmp_path, capsys):
    folder = tmp_path / "study"
    assert f"run 'bash launch/study heads --workdir={folder}' first\n" in refusal(capsys, "probes", f"--workdir={folder}")
    runs = report_of(folder / "heads", ["heads_per_layer-8_seed-2", "heads_per_layer-8_seed-3", "heads_per_layer-1_seed-2"])
    published = folder / "published/probes"
    ablation, similarity, coverage = commanded("probes")
    assert ablation == ["probe", "ablation", *runs, "--batches=16", f"--out={published}/ablation.json"]
    assert similarity == ["probe", "similarity", *runs, f"--out={published}/similarity.json"]
    assert coverage == ["probe", "coverage", *runs, f"--out={published}/coverage.json"]


def test_translations_of_the_reporting_runs_are_scored_shape_against_shape(commanded, tmp_path, capsys):
    folder = tmp_path / "study"
    given = ("--input=test.en", "--references=test.de")
    for more, said in [
        ((), "translations takes --input=... and --references=...\n"),
        (("--input=test.en",), "translations takes --input=... and --references=...\n"),
        (("--source=x", *given), "translations takes --input=... and --references=..., not --source=x\n"),
        (given, f"run 'bash launch/study multi30k_whole --workdir={folder}' first\n"),
    ]:
        assert said in refusal(capsys, "translations", f"--workdir={folder}", *more)
    names = [f"heads_per_layer-{heads}_seed-{seed}" for heads in (4, 1) for seed in (2, 3)]
    runs = report_of(folder / "multi30k_whole", names)
    out = folder / "published/translations"
    *predicted, scored = commanded("translations", *given)
    files = [f"{out}/{name}.de" for name in names]
    assert predicted == [["predict", run, "--input=test.en", f"--output={file}"] for run, file in zip(runs, files, strict=True)]
    assert scored == ["score", "--hypotheses", *files[2:], "--baseline", *files[:2], "--references=test.de"]


def test_a_page_reports_every_stage_and_those_of_one_question_beside_each_other(tmp_path):
    begin(tmp_path, "admin", "heads", "large", "numbers", "stability")
    (tmp_path / "keel/runs").mkdir(parents=True)  # nothing of it has run
    compared = {part: ([Path(path).name for path in asked.paths], asked.over) for part, asked in study.comparisons(tmp_path)}
    assert compared == {
        "heads": (["heads"], "lr"),
        "large": (["large"], "lr"),
        "gap": (["heads", "large"], "lr"),
        "admin": (["admin"], "lr"),
        "numbers": (["numbers"], None),
    }


def test_the_page_is_what_was_published(tmp_path, capsys):
    published, page = tmp_path / "study/published", tmp_path / "page"
    words = ("page", f"--workdir={tmp_path}/study")
    for more, said in [
        ((), "page takes --out=...\n"),
        (("--oot=x", "--out=x"), "page takes --out=..., not --oot=x\n"),
        ((f"--out={page}",), f"nothing has run in {tmp_path}/study; run a stage first\n"),
    ]:
        assert said in refusal(capsys, *words, *more)
    report = (
        "<!-- by -->\n\n- 3x8 ends higher (95 %\n  interval 1 to 2).\n"
        "- The best rate of 3x8 is 3, of\n  1 to 9 (10 trials).\n"
        "- 6x4: A fair comparison: only the head grouping differs (it has 3 % more parameters and\n"
        "  ends worse all the same).\n\n"
        "![Curves](report.svg)\n\n![Loss](report_1.svg)\n\n{0}Results by group:\n\n"
        "| a | trained |\n| --- | --- |\n| 3x8 | 5 of 5 |\n| 6x4 | {1} of 5 |\n\n▼ lower.\n\n"
        "{0}Other measures, not tested:\n\n| b |\n"
    )
    changes = "- 1 layer (1x12 and 1x24): b instead of a changes the difference\n  from 3 to 4, by 1 (0 to 2).\n"
    probe = "![ablation](ablation.png)\n\nthe loss:\n\n|  | 3L8H, 5 seeds |\n| --- | --- |\n| + |  |\n| loss | 2 |\n"
    for file, text in {
        "width/report.md": report.format("", 5),
        "admin/report.md": report.format("", 4),
        "width/report_1.png": "a picture",
        "width/report.png": "curves",
        "gap/report.md": changes + report.format("a: ", 5),
        "gap/report_1.png": "a picture of width",
        "heads/report.md": "- Higher.\n- See \\](x.png)\n",
        "heads/report.json": "{}",
        "probes/ablation.md": probe,
        "probes/ablation.png": "a picture",
    }.items():
        (published / file).parent.mkdir(parents=True, exist_ok=True)
        (published / file).write_text(text)
    study.main([*words, f"--out={page}"])
    text = (page / "index.md").read_text()
    single = "- 6x4: 3 % more parameters.\n\n![Loss](width/report_1.png)\n\n| a |\n| --- |\n| 3x8 |\n| 6x4 |\n\n## "
    assert f"at equal size\n\n{single}" in text  # its verdict and best rate stand in the table
    assert "| a | trained |\n| --- | --- |\n| 3x8 | 5 of 5 |\n| 6x4 | 4 of 5 |\n\n## " in text
    assert "with size?\n\n- 1 layer, b instead of a: 1 (0 to 2).\n\n- 3x8 ends higher.\n\n## " in text
    assert (
        text.index("See")
        < text.index("with size?")
        < text.index("width/report_1")
        < text.index("](probes/ablation.png)\n\nthe loss:\n\n[All figures](probes/ablation.tsv)")
    )
    assert (page / "probes/ablation.tsv").read_text() == "\t3L8H, 5 seeds\n+\t\nloss\t2\n"
    assert "Translation" not in text
    files = {str(file.relative_to(page)) for file in page.glob("**/*") if file.is_file()}
    assert files == {"index.md", "width/report_1.png", "probes/ablation.png", "probes/ablation.tsv"}


def test_the_page_has_a_table_for_each_length(tmp_path):
    folder = tmp_path / "study/published/trained"
    folder.mkdir(parents=True)
    larger = "- budget {0}: 24x1: A fair comparison: only the head grouping\n  differs (it has 3 % more parameters{1}).\n"
    verdict = "- budget {0}: No clear winner: 3x8 ends 0.1 below 24x1 (95 % interval -1\n  to +1, 6 seeds).\n"
    table = "budget {0}: Results by group:\n\n| group | loss |\n| --- | ---: |\n| 3x8 | {0} |\n\n"
    changes = "- 1 head a layer (24x1): budget 2 instead of budget 1 changes the difference from 0 to 1, by 1.\n"
    (folder / "report.md").write_text(
        "".join(verdict.format(each) for each in (1, 2))
        + changes
        + larger.format(1, " and ends worse all the same")
        + larger.format(2, "")
        + "\n![Loss](report_1.svg)\n\n"
        + "".join(table.format(each) for each in (1, 2))
        + "budget 1: Other measures, not tested:\n\n| no |\n"
    )
    write_page(folder.parent, tmp_path / "page")
    text = (tmp_path / "page/index.md").read_text()
    tables = "\n\n".join(f"budget {each}:\n\n| group | loss |\n| --- | ---: |\n| 3x8 | {each} |" for each in (1, 2))
    assert text.endswith(
        f"tokens a parameter\n\n{changes}- 24x1: 3 % more parameters.\n\n![Loss](trained/report_1.png)\n\n{tables}\n"
    )


def test_the_page_keeps_what_another_folder_published(tmp_path):
    def page(folder: str, out: str, stages: dict[str, str]) -> str:
        for stage, said in stages.items():
            stage_folder = tmp_path / folder / "published" / stage
            stage_folder.mkdir(parents=True)
            (stage_folder / "report.md").write_text(said)
        write_page(tmp_path / folder / "published", tmp_path / out)
        return (tmp_path / out / "index.md").read_text()

    first = {"heads": "| higher |\n", "gap_heads": "- It grows.\n", "keel": "| lower |\n"}
    second = {"width": "| wider |\n", "keel": "| higher |\n"}
    assert "\n\n- It grows.\n" in page("first", "kept", first)
    assert page("second", "kept", second) == page("both", "at_once", first | second)


def test_every_part_of_the_page_has_stages():
    assert {stage for part in PARTS for stage in BESIDE.get(part, (part,))} == {*study.STAGES, "probes"} - {"stability", "steady"}


def test_an_unknown_stage_is_told_which_there_are(capsys):
    assert "'multi30k_whole'" in refusal(capsys, "head")


@pytest.mark.slow
def test_the_published_verdicts_are_those_of_the_kept_losses():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.verdicts.study", "docs/study"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == (ROOT / "docs/study/changed.csv").read_text(encoding="utf-8")
