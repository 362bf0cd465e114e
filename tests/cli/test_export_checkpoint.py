"""`mhsh export` on the command line: which step, what is said of it, and what is refused."""

from __future__ import annotations

import jax
import numpy as np

from mhsh.cli.main import main
from mhsh.interop.export_bert import export_bert
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.state import TrainState
from tests.interop.small_bert import small_config, small_tokenizer, trained_params


def test_a_trained_model_is_exported_with_what_was_done_to_it(capsys, fails, tmp_path):
    """An Admin model of one head: folded, padded, and the newest of its steps, or the one that is
    asked for.
    """
    config = small_config(next_sentence=True, residual="admin", num_heads=1, mlp_dropout=0.1)
    folder = RunFolder.open_for_training(tmp_path / "run", config)
    small_tokenizer().save(folder.path / "vocab.txt")
    checkpoints = Checkpoints(folder.checkpoints_path, keep=5, keep_every=0)
    states = {step: trained_params(config.model, step) for step in (1, 2)}
    for step, params in states.items():
        checkpoints.save(step, jax.device_put(TrainState(params, {}, np.int32(step))))
    checkpoints.close()
    for arguments, step in (([], 2), (["--step=1"], 1)):
        out = tmp_path / f"out{step}"
        assert main(["export", str(folder.path), f"--out={out}", *arguments]) == 0
        printed = capsys.readouterr().out
        assert "heads of 12" in printed and "model.mlp_dropout = 0.1" in printed
        (expected := tmp_path / f"expected{step}").mkdir()
        export_bert(expected, config.model, states[step], small_tokenizer(), lowercase=True, labels=())
        for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer_config.json"):
            assert (out / name).read_bytes() == (expected / name).read_bytes()
    assert "holds no checkpoint of step 7" in fails("export", str(folder.path), f"--out={tmp_path / 'out'}", "--step=7")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported(fails, tmp_path, make_config):
    for name, overrides in (("model.residual", {"model.residual": "pre_ln"}), ("data.tokenizer", {"data.tokenizer": "bytes"})):
        folder = RunFolder.open_for_training(tmp_path / name, make_config("bert", "2l8h", **overrides))
        said = fails("export", str(folder.path), f"--out={tmp_path / 'out'}")
        assert f"{name} = {overrides[name]!r} cannot be exported" in said
    assert not (tmp_path / "out").exists()
