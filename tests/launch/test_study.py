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
SWEEPS = re.findall(r"^(\w+) +(?:study|evidence|bert):", LAUNCHER.read_text(encoding="utf-8"), re.MULTILINE)

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def study(launch: Launch, tmp_path: Path) -> Callable[..., list[list[str]]]:
    """study("heads", "--dry-run"): the arguments of every mhsh that it started."""
    venv = tmp_path / "environment"
    (venv / "bin").mkdir(parents=True)
    mhsh = venv / "bin/mhsh"
    # A sweep leaves its report behind, mhsh tuned its own.
    mhsh.write_text(
        '#!/usr/bin/env bash\nprintf "%s\\n" "$@" . >>"$HOME/calls"\n'
        'mkdir -p "$HOME/study/width" && touch "$HOME/study/width/sweep.json" "$HOME/study/width/tuned.png"\n'
    )
    mhsh.chmod(0o755)
    (venv / "bin/python").symlink_to(sys.executable)
    made_from = 'echo "$(cat pyproject.toml constraints.txt | cksum) $(python3 --version) "'
    installed = subprocess.run(["bash", "-c", made_from], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (venv / ".installed").write_text(installed)

    def run(*arguments: str) -> list[list[str]]:
        done = launch("study", *arguments, f"--workdir={tmp_path}/study", MHSH_VENV=str(venv))
        assert done.returncode == 0, done.stderr
        log = tmp_path / "calls"
        calls = log.read_text(encoding="utf-8") if log.exists() else ""
        log.unlink(missing_ok=True)
        return [call.strip("\n").split("\n") for call in calls.split("\n.\n") if call.strip()]

    return run


def test_a_stage_is_swept_tuned_and_published(study, tmp_path):
    sweep, tuned = study("width", "--parallel=2")
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
    assert tuned == ["tuned", f"{tmp_path}/study/width", "--over=lr", "--choosing-seeds=2", "--by=layers_at_equal_size"]
    assert {path.name for path in (tmp_path / "study/published/width").iterdir()} == {"sweep.json", "tuned.png"}


@pytest.mark.parametrize(
    "stage", [pytest.param(stage, marks=() if stage in ("pre_ln", "stability") else pytest.mark.slow) for stage in SWEEPS]
)
def test_every_stage_is_a_plan(study, monkeypatch, capsys, stage):
    monkeypatch.chdir(ROOT)
    (sweep,) = study(stage, "--dry-run")
    assert main(sweep) == 0
    assert re.search(r"^ *in all +\d+", capsys.readouterr().out, re.MULTILINE)


def test_a_stage_at_one_rate_is_compared(study, tmp_path):
    (tmp_path / "study/numbers/runs/a").mkdir(parents=True)
    (tmp_path / "study/numbers/compared").mkdir()
    for name in ("comparison_results.md", "comparison_curves.png", "comparison_curves.svg"):
        (tmp_path / "study/numbers/compared" / name).touch()
    sweep, compared = study("numbers")
    assert sweep[2:6] == ["--axes", "heads_per_layer=8,1", "seed=0,1,2", f"--workdir={tmp_path}/study/numbers"]
    folder = tmp_path / "study/numbers"
    out = f"--out={folder}/compared/comparison.html"
    assert compared == ["compare", f"{folder}/runs/a", "--baseline=heads_per_layer-8", out]
    published = {path.name for path in (tmp_path / "study/published/numbers").iterdir()}
    assert published == {"comparison_results.md", "comparison_curves.png"}


def test_a_stage_without_seeds_publishes_its_map_and_compares_nothing(study, tmp_path):
    (tmp_path / "study/stability").mkdir(parents=True)
    (tmp_path / "study/stability/stability_map.png").touch()
    (sweep,) = study("stability")
    assert sweep[0] == "sweep"
    assert {path.name for path in (tmp_path / "study/published/stability").iterdir()} == {"stability_map.png"}


def test_the_fields_of_a_stage_come_before_those_given(study):
    (sweep,) = study("heads_own", "--dry-run", "--config.train.num_steps=2")
    assert sweep[-3:] == ["--config.model.fans=own", "--config.train.num_steps=2", "--dry-run"]


def test_probes_look_into_the_reporting_runs_of_every_shape_once(study, tmp_path, launch):
    done = launch("study", "probes", f"--workdir={tmp_path}/study", MHSH_VENV=str(tmp_path / "environment"))
    assert (done.returncode, done.stderr) == (2, f"probes: run 'bash launch/study heads --workdir={tmp_path}/study' first\n")
    (tmp_path / "study/heads").mkdir(parents=True)
    settings = [{"runs": ["heads_per_layer=8,seed=2", "heads_per_layer=8,seed=3"]}, {"runs": ["heads_per_layer=1,seed=2"]}]
    (tmp_path / "study/heads/tuned.json").write_text(json.dumps({"settings": settings}))
    runs = [f"{tmp_path}/study/heads/runs/{run}" for setting in settings for run in setting["runs"]]
    assert study("probes", "--dry-run") == []
    published = tmp_path / "study/published/probes"
    ablation, similarity, coverage = study("probes")
    assert ablation == ["probe", "ablation", *runs, "--batches=16", f"--out={published}/ablation.json"]
    assert similarity == ["probe", "similarity", *runs, f"--out={published}/similarity.json"]
    assert coverage[:2] == ["probe", "coverage"]
    for kind in ("ablation", "similarity", "coverage"):
        (published / f"{kind}.json").touch()
    assert study("probes") == []


def test_a_gap_is_that_of_the_stages_that_are_tuned(study, tmp_path, launch):
    folder = tmp_path / "study"
    nothing = f"gap: nothing to compare in {folder}; run two stages of one question, as heads and large, first\n"

    def tune(*stages: str) -> None:
        for stage in stages:
            (folder / stage).mkdir(parents=True)
            (folder / stage / "tuned.json").touch()

    for stages in ((), ("admin",)):
        tune(*stages)
        done = launch("study", "gap", f"--workdir={folder}", MHSH_VENV=str(tmp_path / "environment"))
        assert (done.returncode, done.stderr) == (2, nothing)
    tune("heads", "large", "longer", "keel", "bert_mini")
    tuned = ["--over=lr", "--choosing-seeds=2"]
    published = folder / "published"
    assert study("gap") == [
        ["gap", f"{folder}/heads", f"{folder}/large", *tuned, f"--out={published}/gap/gap.json"],
        ["gap", f"{folder}/longer", *tuned, f"--out={published}/gap_longer/gap_longer.json"],
        ["gap", f"{folder}/admin", f"{folder}/keel", *tuned, f"--out={published}/gap_schemes/gap_schemes.json"],
    ]


def test_the_page_is_what_was_published(launch, tmp_path):
    published, page = tmp_path / "study/published", tmp_path / "page"
    words = ("study", "page", f"--workdir={tmp_path}/study")
    for more, said in [
        ((), "page: where to? give --out=FOLDER\n"),
        (("--oot=x",), "page: --oot=x is unknown; give --out=FOLDER\n"),
        ((f"--out={page}",), f"page: nothing is published in {tmp_path}/study; run a stage first\n"),
    ]:
        done = launch(*words, *more)
        assert (done.returncode, done.stderr) == (2, said)
    for file, text in {
        "width/tuned.md": "- Equal tuning budget.\n\n![Loss](tuned.png)\n",
        "width/tuned.png": "a picture",
        "heads/tuned.md": "- Higher. See \\](x.png)\n",
        "heads/tuned.json": "{}",
        "probes/ablation.md": "| model |\n",
    }.items():
        (published / file).parent.mkdir(parents=True, exist_ok=True)
        (published / file).write_text(text)
    assert launch(*words, f"--out={page}").returncode == 0
    text = (page / "index.md").read_text()
    assert "    bash launch/study width\n\n- Equal tuning budget.\n\n![Loss](width/tuned.png)\n" in text
    assert text.index("study heads") < text.index("study width") < text.index("study probes\n\n| model |")
    assert "numbers" not in text
    files = {str(file.relative_to(page)) for file in page.glob("**/*") if file.is_file()}
    assert files == {"index.md", "width/tuned.png", "heads/tuned.json"}


def test_the_page_keeps_what_another_folder_published(launch, tmp_path):
    def page(folder: str, out: str, stages: dict[str, str]) -> str:
        for stage, said in stages.items():
            stage_folder = tmp_path / folder / "published" / stage
            stage_folder.mkdir(parents=True)
            (stage_folder / f"{stage if stage.startswith('gap') else 'tuned'}.md").write_text(said)
        assert launch("study", "page", f"--workdir={tmp_path}/{folder}", f"--out={tmp_path}/{out}").returncode == 0
        return (tmp_path / out / "index.md").read_text()

    first = {"heads": "- Higher.\n", "gap_longer": "- It grows.\n", "keel": "- Lower.\n"}
    second = {"width": "- Wider.\n", "keel": "- Higher.\n"}
    assert "    bash launch/study gap\n\n- It grows.\n" in page("first", "kept", first)
    assert page("second", "kept", second) == page("both", "at_once", first | second)


def test_every_stage_has_a_heading():
    script = LAUNCHER.read_text(encoding="utf-8")
    gaps, headings = (
        {line.split()[0] for line in script[script.index(f"{table}() {{") :].split("TABLE\n")[1].splitlines()}
        for table in ("gaps", "questions")
    )
    assert headings == {*SWEEPS, *gaps, "probes"}


def test_an_unknown_stage_is_told_which_there_are(launch):
    for arguments in ((), ("head",), (".*",)):
        done = launch("study", *arguments)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == f"stages: {' '.join(SWEEPS)} probes gap page"
