"""`mhsh export` on the command line: which step, what is said of it, and what is refused."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from msgspec.structs import replace

import mhsh
from mhsh.cli.main import main
from mhsh.data.wordpiece import ByteTokenizer
from mhsh.interop.export_bert import export_bert
from mhsh.interop.llama import export_llama
from mhsh.interop.weights import SafetensorsFile
from mhsh.storage.run_folder import RunFolder
from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.checkpoints.restore import load_for_inference
from mhsh.training.state import TrainState
from tests.interop.small_bert import small_config, small_tokenizer, trained_params
from tests.interop.small_llama import small_config as small_llama
from tests.runs import saved_run


def test_a_trained_model_is_exported_with_what_was_done_to_it(capsys, fails, tmp_path):
    """An Admin model of one head: folded, padded, and the newest of its steps, or the one that is
    asked for.
    """
    config = small_config(next_sentence=True, residual="admin", num_heads=1, mlp_dropout=0.1)
    folder = RunFolder.open_for_training(tmp_path / "run", config)
    small_tokenizer().save(folder.path / "vocab.txt")
    checkpoints = Checkpoints(folder.checkpoints_path, keep=5)
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
    folder.write_run({"vocabulary": "of another file"})
    said = fails("export", str(folder.path), f"--out={tmp_path / 'out'}")
    assert "vocab.txt is missing, or is not the vocabulary that the run began with" in said
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported(fails, tmp_path, make_config):
    for name, overrides in (("model.residual", {"model.residual": "pre_ln"}), ("data.tokenizer", {"data.tokenizer": "bytes"})):
        folder = RunFolder.open_for_training(tmp_path / name, make_config("bert", "2l8h", **overrides))
        said = fails("export", str(folder.path), f"--out={tmp_path / 'out'}")
        assert f"{name} = {overrides[name]!r} cannot be exported" in said
    assert not (tmp_path / "out").exists()


def test_every_kept_step_of_a_decoder_goes_out_and_comes_in(capsys, fails, tmp_path):
    config = small_llama(num_kv_heads=2, qk_norm=True, hidden_dropout=0.1)
    params = [trained_params(config.model, seed) for seed in range(2)]
    run, out = saved_run(tmp_path / "run", config, ByteTokenizer(), *params), tmp_path / "out"
    assert main(["export", run, f"--out={out}", "--all-steps"]) == 0
    printed = capsys.readouterr().out
    assert f"{out / '1'}: Qwen3ForCausalLM of {run}, step 1, 2 layers x 4 heads of 4, D = 12, F = 20" in printed
    assert "not in config.json: model.hidden_dropout = 0.1; only" in printed
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    card = (out / "2" / "README.md").read_text()
    assert "step 2 of 300" in card and "Qwen3ForCausalLM.from_pretrained" in card and '"num_kv_heads": 2' in card

    again = tmp_path / "once again"
    assert main(["inspect", str(out / "2")]) == 0
    assert capsys.readouterr().out.endswith(f"to import it: mhsh import {out / '2'} --config=gpt:6l4h --out=runs/imported\n")
    assert main(["import", str(out / "2"), "--config=gpt:6l4h", "--config.data.sequence_length=12", f"--out={again}"]) == 0
    printed = capsys.readouterr().out
    assert "again: Qwen3ForCausalLM of" in printed and printed.endswith(f"further: mhsh train --workdir='{again}'\n")
    folder = RunFolder(again)
    found = folder.read_config()
    assert found.model == replace(config.model, hidden_dropout=0.0)
    jax.tree.map(np.testing.assert_array_equal, load_for_inference(folder, found, None, 1)[1], params[1])
    texts = [mhsh.load(str(path)).generate("ab", max_tokens=5, temperature=0.0) for path in (run, again)]
    assert texts[0] == texts[1]

    said = fails("export", run, f"--out={tmp_path / 'x'}", "--all-steps", "--step=1")
    assert "give --step or --all-steps, not both" in said
    said = fails("import", str(out / "2"), "--config=gpt:6l4h", "--fresh-heads", f"--out={tmp_path / 'x'}")
    assert "is a language model, which is imported whole" in said
    said = fails("import", str(out / "2"), "--config=bert:2l8h", f"--out={tmp_path / 'x'}")
    assert "it is a language model, the --config has model.objective = 'mlm'" in said
    assert not (tmp_path / "x").exists()


def test_a_tokenizer_that_mhsh_has_not_is_refused_before_the_weights_are_read(fails, tmp_path, monkeypatch):
    """Those of a Llama with such a one, as most are, may not fit the memory."""
    config = small_llama()
    export_llama(tmp_path, config.model, trained_params(config.model), ByteTokenizer())
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"pre_tokenizer": {"type": "Whitespace"}}))
    monkeypatch.setattr(SafetensorsFile, "read", lambda *_: pytest.fail("a tensor was read"))
    assert "mhsh has bytes and BERT's WordPiece alone" in fails("import", str(tmp_path), "--config=gpt:6l4h", f"--out={tmp_path}/x")
