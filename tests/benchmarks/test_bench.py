"""`python -m benchmarks.bench`: beside peers and ceilings, the input pipeline, and compiling."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.bench.__main__ import main, parse
from benchmarks.bench.ceilings import set_apart
from mhsh.bench.results import CeilingResult
from mhsh.bench.timing import Candidate, Times, candidate_results
from mhsh.errors import install_command
from tests.bench.test_timing import made
from tests.cli.test_bench import tiny
from tests.conftest import ROOT

BERT, TRANSLATION = "--config=bert:2l8h", "--config=translation:tiny"


def bench(out: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """The candidates of the only setting, and the table, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench", *arguments, f"--out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(out.read_text())["cells"]
    return cell["candidates"], done.stdout


def test_shares_of_the_ceilings_by_hand(make_config):
    """The rate of a ceiling is that of its best turn."""
    results = made(make_config, [{"batch": 2, "length": 50}])
    limits = {"matmul": CeilingResult(1000, [], 0.0, dtype="float32", size=8)}
    facts = {"config": "config", "implementation": "XLA", "devices": 1}
    products = [
        Candidate(name=name, label=name, run=lambda _: None, work=limit.work, baseline=None, facts=facts)
        for name, limit in limits.items()
    ]
    times = {"matmul": Times(1, [[2.0], [1.0]], [1.0, 1.0])}
    results.cells[0].candidates += candidate_results(products, times)
    set_apart(results, limits)
    first, second = results.cells[0].candidates
    assert results.ceilings["matmul"].rate == 1000 and results.ceilings["matmul"].turns == [[2.0], [1.0]]
    assert first.share_of_matmul == 400 / 3 / 1000 and second.share_of_matmul == 200 / 4.5 / 2 / 1000


def test_a_variant_is_the_config_with_other_fields():
    base = ["train", "--config=bert:4l4h", "--config.optimizer.learning_rate=2e-4", "--against=bert:2l8h"]
    both = "model.scan_unroll=2,model.remat_policy=full"
    _, configs, *_ = parse([*base, f"--variant={both}", "--variant=train.batch_size=4"])
    config = configs["config"]
    assert list(configs) == ["config", "against", both, "train.batch_size=4"]
    assert configs[both] == replace(config, model=replace(config.model, scan_unroll=2, remat_policy="full"))
    assert configs["train.batch_size=4"] == replace(config, train=replace(config.train, batch_size=4))
    assert config.optimizer.learning_rate == 2e-4


def test_the_input_pipeline(corpus, tmp_path):
    config = [*tiny("config", "bert.py:2l8h", **{"data.validation_fraction": 0.2}), corpus]
    out = tmp_path / "input.json"
    assert main(["input", *config, "--rounds=2", "--batches=5", f"--out={out}"]) == 0
    (only,) = json.loads(out.read_text())["cells"][0]["candidates"]
    assert only["work"] == 5 * 8 * 16 and only["rate"] == pytest.approx(only["work"] / only["seconds"]["median"])


@pytest.mark.parity
def test_writing_beside_gpt2(tmp_path):
    causal = {"model.residual": "pre_ln", "model.embed_dim": 16, "model.head_dim": 4, "model.max_positions": 64}
    config = tiny("config", "quickstart.py:6l4h_post_ln", **causal)
    few = ["--sentences=2", "--source-tokens=5", "--steps=4", "--rounds=1", "--peer=gpt2"]
    found, _ = bench(tmp_path / "decode.json", "decode", *config, *few)
    assert [candidate["name"] for candidate in found] == ["config", "gpt2"]


@pytest.mark.slow
def test_compiling(tmp_path):
    found, table = bench(tmp_path / "compile.json", "compile", *tiny("config", "bert.py:2l8h"), "--rounds=1")
    (only,) = found
    assert only["work"] == 1 and only["turns"][0][0] > 0.05, "no cache has answered"
    assert "config: mhsh 2x8 admin float32" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", BERT, "--peer=torch-eager,torch-eager"], "names torch-eager twice"),
        (["train", BERT, "--peer=tensorflow"], "unknown peer 'tensorflow'; allowed: torch-eager"),
        (["input", TRANSLATION], "model.objective = 'translation' masks nothing"),
        (["train", BERT, "--nothing"], "--nothing is not an argument of train"),
    ],
)
def test_mistakes(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.strip().split("\n")) == 1 and not captured.out


@pytest.mark.parametrize("kind", ["train", "inference", "input", "decode"])
def test_a_peer_that_is_not_installed(capsys, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "torch", None)  # as good as missing, whether it is there or not
    peer = {"input": "loader", "decode": "marian"}.get(kind, "torch-eager")
    assert main([kind, TRANSLATION if kind == "decode" else BERT, f"--peer={peer}"]) == 2
    hint = install_command("parity")
    assert capsys.readouterr().err == f"benchmarks.bench: --peer={peer} needs torch: {hint}, or leave --peer out\n"


@pytest.mark.parity
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--config.model.qk_norm=true"], "model.qk_norm = True has no torch peer; add --config.model.qk_norm=False"),
        (["--config.model.residual=rezero"], "model.residual = 'rezero' has no torch peer; allowed with --peer: post_ln"),
        (["--config.optimizer.name=lamb"], "peers train with AdamW; add --config.optimizer.name=adamw"),
    ],
)
def test_what_no_peer_can_do(capsys, overrides, message):
    assert main(["train", BERT, "--peer=torch-eager", *overrides]) == 2
    assert message in capsys.readouterr().err
