"""launch/study: which commands a stage becomes, that every stage is a plan, what is published."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mhsh.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "launch/study"
SWEEPS = re.findall(r"^(\w+) +[a-z]+:[\w]+ +[a-z]", LAUNCHER.read_text(encoding="utf-8"), re.MULTILINE)

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def study(launch: Launch, make_venv: Callable[..., Path], tmp_path: Path) -> Callable[..., list[list[str]]]:
    """study("heads", "--dry-run"): the arguments of every mhsh that it started."""
    calls = r'printf "%s\n" "$@" . >>"$HOME/calls"'
    venv = make_venv(tmp_path / "environment", python=f'exec {sys.executable} "$@"', mhsh=calls)

    def run(*arguments: str) -> list[list[str]]:
        done = launch("study", *arguments, f"--workdir={tmp_path}/study", MHSH_VENV=str(venv))
        assert done.returncode == 0, done.stderr
        log = tmp_path / "calls"
        calls = log.read_text(encoding="utf-8") if log.exists() else ""
        log.unlink(missing_ok=True)
        return [call.strip("\n").split("\n") for call in calls.split("\n.\n") if call.strip()]

    return run


def begin(folder: Path, *stages: str) -> None:
    for stage in stages:
        (folder / stage / "runs/a").mkdir(parents=True, exist_ok=True)
        (folder / stage / "runs/a/run.json").touch()


def test_a_stage_is_a_sweep_which_reports_itself(study, tmp_path):
    (sweep,) = study("width", "--parallel=2")
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
    ]
    (sweep,) = study("numbers")
    assert sweep[2:] == ["--axes", "heads_per_layer=8,1", "seed=0,1,2", f"--workdir={tmp_path}/study/numbers"]


@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=() if stage in ("pre_ln", "stability") else pytest.mark.slow) for stage in SWEEPS]
)
def test_every_stage_is_a_plan(study, monkeypatch, capsys, stage):
    monkeypatch.chdir(ROOT)
    (sweep,) = study(stage, "--dry-run")
    assert main(sweep) == 0
    assert re.search(r"^ *in all +\d+", capsys.readouterr().out, re.MULTILINE)


def test_the_fields_of_a_stage_come_before_those_given(study):
    (sweep,) = study("heads_own", "--dry-run", "--config.train.num_steps=2")
    assert sweep[-3:] == ["--config.model.fans=own", "--config.train.num_steps=2", "--dry-run"]


def test_probes_look_into_the_reporting_runs_of_every_shape_once(study, tmp_path, launch):
    done = launch("study", "probes", f"--workdir={tmp_path}/study", MHSH_VENV=str(tmp_path / "environment"))
    assert (done.returncode, done.stderr) == (2, f"probes: run 'bash launch/study heads --workdir={tmp_path}/study' first\n")
    (tmp_path / "study/heads").mkdir(parents=True)
    names = ["heads_per_layer-8_seed-2", "heads_per_layer-8_seed-3", "heads_per_layer-1_seed-2"]
    curves = {"runs": [{"name": name, "curves": {}} for name in names]}
    (tmp_path / "study/heads/report.json").write_text(json.dumps({"report": {"curves": curves}}))
    runs = [f"{tmp_path}/study/heads/runs/{name}" for name in names]
    assert study("probes", "--dry-run") == []
    published = tmp_path / "study/published/probes"
    ablation, similarity, coverage = study("probes")
    assert ablation == ["probe", "ablation", *runs, "--batches=16", f"--out={published}/ablation.json"]
    assert similarity == ["probe", "similarity", *runs, f"--out={published}/similarity.json"]
    assert coverage[:2] == ["probe", "coverage"]
    published.mkdir(parents=True)
    for kind in ("ablation", "similarity", "coverage"):
        (published / f"{kind}.json").touch()
    assert study("probes") == []


def test_translations_of_the_reporting_runs_are_scored_shape_against_shape(study, tmp_path, launch):
    folder = tmp_path / "study"
    given = ("--input=test.en", "--references=test.de")
    for more, said in [
        ((), "give --input=FILE and --references=FILE\n"),
        (("--input=test.en",), "give --input=FILE and --references=FILE\n"),
        (("--source=x", *given), "--source=x is unknown; give --input=FILE and --references=FILE\n"),
        (given, f"run 'bash launch/study multi30k_whole --workdir={folder}' first\n"),
    ]:
        done = launch("study", "translations", f"--workdir={folder}", *more, MHSH_VENV=str(tmp_path / "environment"))
        assert (done.returncode, done.stderr) == (2, f"translations: {said}")
    (folder / "multi30k_whole").mkdir(parents=True)
    names = [f"heads_per_layer-{heads}_seed-{seed}" for heads in (4, 1) for seed in (2, 3)]
    curves = {"runs": [{"name": name, "curves": {}} for name in names]}
    (folder / "multi30k_whole/report.json").write_text(json.dumps({"report": {"curves": curves}}))
    assert study("translations", "--dry-run", *given) == []
    out = folder / "published/translations"
    *predicted, scored = study("translations", *given)
    expected = [
        ["predict", f"{folder}/multi30k_whole/runs/{name}", "--input=test.en", f"--output={out}/{name}.de"] for name in names
    ]
    assert predicted == expected
    shallow, deep = ([f"{out}/{name}.de" for name in names[part]] for part in (slice(2), slice(2, 4)))
    assert scored == ["score", "translation", "--hypotheses", *deep, "--baseline", *shallow, "--references=test.de"]
    for name in names[:3]:
        (out / f"{name}.de").touch()
    assert study("translations", *given) == [predicted[3], scored]


def test_a_page_reports_every_stage_and_those_of_one_question_beside_each_other(study, tmp_path):
    folder = tmp_path / "study"
    begin(folder, "admin", "heads", "large", "numbers", "stability")
    (folder / "published").mkdir()
    (folder / "keel/runs").mkdir(parents=True)  # nothing of it has run
    tuned = ["--over=lr", "--choosing-seeds=2"]

    def compared(part: str, stages: tuple[str, ...], flags: list[str]) -> list[str]:
        return [
            "compare",
            *(f"{folder}/{each}" for each in stages),
            *flags,
            "--png",
            f"--out={folder}/published/{part}/report.html",
        ]

    assert study("page", f"--out={tmp_path}/page") == [
        compared("heads", ("heads",), tuned),
        compared("large", ("large",), tuned),
        compared("gap", ("heads", "large"), tuned),
        compared("admin", ("admin",), tuned),
        compared("numbers", ("numbers",), []),
    ]


def test_the_page_is_what_was_published(launch, tmp_path):
    published, page = tmp_path / "study/published", tmp_path / "page"
    words = ("study", "page", f"--workdir={tmp_path}/study")
    for more, said in [
        ((), "page: where to? give --out=FOLDER\n"),
        (("--oot=x", "--out=x"), "page: --oot=x is unknown; give --out=FOLDER\n"),
        ((f"--out={page}",), f"page: nothing has run in {tmp_path}/study; run a stage first\n"),
    ]:
        done = launch(*words, *more)
        assert (done.returncode, done.stderr) == (2, said)
    report = (
        "<!-- by -->\n\n- 3x8 ends higher (95 %\n  interval 1 to 2).\n"
        "- The best rate of 3x8 is 3, of\n  1 to 9 (10 trials).\n"
        "- 6x4: A fair comparison: only the head grouping differs (it has 3 % more parameters and\n"
        "  ends worse all the same).\n\n"
        "![Curves](report.svg)\n\n![Loss](report_1.svg)\n\n{0}Results by group:\n\n"
        "| a | trained | steps to 2.1 | device time to 2.1 |\n| --- | --- | ---: | ---: |\n"
        "| 3x8 | 5 of 5 | 30 | 3 s |\n| 6x4 | {1} of 5 | 40 | 4 s |\n\n▼ lower.\n\n"
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
    assert launch(*words, f"--out={page}").returncode == 0
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


def test_the_page_has_a_table_for_each_length(launch, tmp_path):
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
    assert launch("study", "page", f"--workdir={tmp_path}/study", f"--out={tmp_path}/page").returncode == 0
    text = (tmp_path / "page/index.md").read_text()
    tables = "\n\n".join(f"budget {each}:\n\n| group | loss |\n| --- | ---: |\n| 3x8 | {each} |" for each in (1, 2))
    assert text.endswith(
        f"tokens a parameter\n\n{changes}- 24x1: 3 % more parameters.\n\n![Loss](trained/report_1.png)\n\n{tables}\n"
    )


def test_the_page_keeps_what_another_folder_published(launch, tmp_path):
    def page(folder: str, out: str, stages: dict[str, str]) -> str:
        for stage, said in stages.items():
            stage_folder = tmp_path / folder / "published" / stage
            stage_folder.mkdir(parents=True)
            (stage_folder / "report.md").write_text(said)
        assert launch("study", "page", f"--workdir={tmp_path}/{folder}", f"--out={tmp_path}/{out}").returncode == 0
        return (tmp_path / out / "index.md").read_text()

    first = {"heads": "| higher |\n", "gap_heads": "- It grows.\n", "keel": "| lower |\n"}
    second = {"width": "| wider |\n", "keel": "| higher |\n"}
    assert "\n\n- It grows.\n" in page("first", "kept", first)
    assert page("second", "kept", second) == page("both", "at_once", first | second)


def test_every_part_of_the_page_has_stages():
    table = LAUNCHER.read_text(encoding="utf-8").split("parts() {")[1].split("TABLE\n")[1]
    rows = [line.split(maxsplit=2) for line in table.splitlines()]
    assert {stage for _, stages, _ in rows for stage in stages.split(",")} == {*SWEEPS, "-"} - {"stability"}


def test_an_unknown_stage_is_told_which_there_are(launch):
    for arguments in ((), ("head",), (".*",)):
        done = launch("study", *arguments)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == f"stages: {' '.join(SWEEPS)} probes translations page"


@pytest.mark.slow
def test_the_published_verdicts_are_those_of_the_kept_losses():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.verdicts.study", "docs/study"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == (ROOT / "docs/study/changed.csv").read_text(encoding="utf-8")
