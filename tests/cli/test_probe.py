"""Tests of `mhsh probe` on a trained run and on fresh models: a table, a JSON and pictures."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mhsh.cli.main import main
from tests.runs import mhsh_here

TINY = [
    "--config=configs/bert.py:2l8h",
    "--config.model.vocab_size=512",
    "--config.model.embed_dim=16",
    "--config.model.head_dim=2",
    "--config.model.mlp_dim=16",
    "--config.model.remat_policy=none",
    "--config.data.sequence_length=32",
    "--config.data.validation_fraction=0.2",
]


@pytest.fixture(scope="module")
def run(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("runs") / "_tiny$run"
    steps = ["--config.train.num_steps=2", "--config.optimizer.warmup_steps=1", "--config.train.eval_batches=1"]
    done = mhsh_here("train", *TINY, corpus, "--config.model.num_layers=3", *steps, f"--workdir={folder}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("kind", ["dependency", "gradients", "coverage", "similarity", "ablation"])
def test_a_run(run, tmp_path, capsys, kind):
    out = tmp_path / "found.json"
    few = ["--batches=2"] if kind == "ablation" else []
    assert main(["probe", kind, str(run), "--rows=2", *few, f"--out={out}"]) == 0
    said = capsys.readouterr().out
    assert "_tiny$run" in said
    assert f"Written: {out} and found.md" in said
    assert "](found.png)" in out.with_suffix(".md").read_text(encoding="utf-8")
    document = json.loads(out.read_text(encoding="utf-8"))
    (model,) = document["models"]
    assert (document["kind"], model["name"], model["step"]) == (kind, "_tiny$run", 2)
    assert document["settings"]["rows"] == 2 and model["config"]["model"]["num_layers"] == 3
    found = model["result"]
    figures = found["stacks"]["encoder"]["layer"] if kind == "gradients" else found["encoder"]
    if kind == "coverage":
        attention = figures["attention"]
        assert len(attention["heads"]) == 3 and len(attention["heads"][0]) == 8
        # At a start like BERT's the scores are near zero: a token looks almost evenly at all it may
        # see.
        assert 0.98 < attention["layers"][0] / attention["visible"] <= 1
    elif kind == "dependency":
        assert sum(sum(part) if isinstance(part, list) else part for part in figures.values()) == pytest.approx(1, abs=1e-3)
    elif kind == "similarity":
        assert all(0 < value <= 1.0001 for value in figures["cka"])
    elif kind == "ablation":
        assert [len(figures[name]) for name in ("whole", "skipped", "swapped", "influence", "later")] == [2, 3, 2, 3, 3]
        assert all(len(losses) == 2 for losses in (*figures["skipped"], *figures["without_last"].values()))
    else:
        assert len(figures) == 3 and min(figures) > 0
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    ET.fromstring(out.with_suffix(".svg").read_bytes())


def test_runs_of_one_name_are_told_apart(run, tmp_path, capsys):
    again, out = shutil.copytree(run, tmp_path / "again" / run.name), tmp_path / "found.json"
    assert main(["probe", "similarity", str(run), str(again), "--rows=2", f"--out={out}"]) == 0
    names = [model["name"] for model in json.loads(out.read_text())["models"]]
    assert names == [f"{path.parent.name}/{run.name}" for path in (run, again)]
    said = capsys.readouterr().out
    assert all(name in said for name in names)


@pytest.mark.slow
def test_a_fresh_shape(corpus, tmp_path, capsys):
    out = tmp_path / "coverage.json"
    assert main(["probe", "coverage", *TINY, corpus, "--config.model.heads_per_layer=2", "--rows=1", f"--out={out}"]) == 0
    (model,) = json.loads(out.read_text())["models"]
    heads = model["result"]["encoder"]["attention"]["heads"]
    assert (len(heads), len(heads[0])) == (8, 2)
    assert "8x2 admin, fresh" in capsys.readouterr().out


@pytest.mark.slow
def test_fresh_stacks_of_several_depths(corpus, tmp_path, capsys):
    out = tmp_path / "amplification.json"
    few = ["--depths=1,2,3", "--schemes=admin_closed_one,rezero", "--draws=2", "--rows=1"]
    assert main(["probe", "amplification", *TINY, corpus, *few, f"--out={out}"]) == 0
    admin, rezero = json.loads(out.read_text())["schemes"]
    assert [point["sublayers"] for point in admin["points"]] == [2, 4, 6] and admin["theory"] == "O(1)"
    assert admin["growth"]["low"] < admin["growth"]["exponent"] < admin["growth"]["high"]
    assert rezero["growth"] is None and [point["mean"] for point in rezero["points"]] == [0, 0, 0]
    assert "admin_closed_one" in capsys.readouterr().out and out.with_suffix(".svg").exists()


def test_what_a_run_does_not_have(run, tmp_path, fails):
    for flag, said in (("--step=7", "holds no checkpoint of step 7"), ("--rows=100000", "--rows=100000 is more than the")):
        assert said in fails("probe", "gradients", str(run), flag, f"--out={tmp_path}/a.json")
    assert not (tmp_path / "a.json").exists()


def test_a_picture_that_is_there_is_kept(run, tmp_path, fails):
    (tmp_path / "found.svg").write_text("mine")
    said = fails("probe", "similarity", str(run), f"--out={tmp_path}/found.json")
    assert "found.svg exists, and nothing is overwritten" in said
    assert (tmp_path / "found.svg").read_text() == "mine" and not (tmp_path / "found.json").exists()
