"""The torch peers do the work of mhsh: with the same weights the same loss and the same first step;
and they are timed whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.bench.peers import build, fits_transformers
from mhsh.bench.steps import synthetic_batch
from mhsh.config.schema import Config
from mhsh.interop.bert_tensors import to_tensors
from mhsh.interop.export_bert import write_tables
from mhsh.models.build import build_model, forward
from mhsh.models.costs import parameter_shapes
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.training.optimizer import build_optimizer, count_decayed, learning_rate
from tests.conftest import MakeConfig

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # torch.compile looks at .grad of what has none
]

# Names in Hugging Face's BERT -> names in PlainTransformer.
NAMES = (
    (r"cls\.predictions\.transform\.dense", "transform"),
    (r"cls\.predictions\.transform\.LayerNorm", "transform_norm"),
    (r"cls\.predictions\.bias", "output_bias"),
    (r"cls\.seq_relationship", "next_sentence"),
    (r"pooler\.dense", "pooler"),
    (r"embeddings\.word_embeddings", "token"),
    (r"embeddings\.(\w+)_embeddings", r"\1"),
    (r"^embeddings\.LayerNorm", "norm"),
    (r"encoder\.layer\.", "layers."),
    (r"attention\.self\.", ""),
    (r"attention\.output\.dense", "out"),
    (r"attention\.output\.LayerNorm", "attention_norm"),
    (r"intermediate\.dense", "up"),
    (r"\boutput\.dense", "down"),
    (r"\boutput\.LayerNorm", "feed_forward_norm"),
)
SHAPES = {
    "transformers": {},
    "transformers without next sentence": dict(next_sentence=False),
    "narrow": dict(num_heads=2),
    "one head": dict(num_heads=1, num_layers=5, mlp_dim=24),
    "wide": dict(num_heads=12, activation="gelu_tanh"),
    "causal": dict(objective="clm", next_sentence=False),
    "causal, sines, no types": dict(
        objective="clm", next_sentence=False, positions="sinusoidal", num_token_types=0, activation="relu"
    ),
}
NO_DROPOUT = dict(hidden_dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0)


def small(make_config: MakeConfig, **model: Any) -> Config:
    """Four rows of 16 tokens, Post-LN, nothing dropped, weights large enough that everything shows
    in the loss.
    """
    config = make_config("bert", "2l8h", **{"train.batch_size": 8, "data.sequence_length": 16, "data.max_predictions": 5})
    fields = dict(residual="post_ln", vocab_size=101, init="xavier") | NO_DROPOUT | model
    return replace(config, model=replace(config.model, **fields))


def random_params(config: Config, seed: int = 0) -> Any:
    """No LayerNorm is the identity, and no bias is 0."""
    generator = np.random.default_rng(seed)

    def drawn(path: tuple[Any, ...], like: Any) -> np.ndarray:
        is_scale = path[-1].key == "scale"
        return (is_scale + 0.1 * generator.standard_normal(like.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(drawn, parameter_shapes(config.model))


def with_params(config: Config, params: Any) -> Any:
    """The peer of a config with these parameters."""
    module, _ = build(config)
    model, params = write_tables(config.model, params)
    tensors = to_tensors(replace(model, objective="mlm"), params)
    tensors = {name: torch.from_numpy(values.copy()) for name, values in tensors.items()}
    if fits_transformers(config):
        missing, unexpected = module.model.load_state_dict(tensors, strict=False)
        assert not unexpected and set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}, missing
        return module
    renamed = {plain_name(name.removeprefix("bert.")): values for name, values in tensors.items()}
    if config.model.num_token_types == 0:
        del renamed["token_type.weight"]
    if config.model.positions == "sinusoidal":
        renamed["sinusoids"] = renamed.pop("position.weight")
    module.load_state_dict(renamed, strict=True)
    return module


def plain_name(name: str) -> str:
    """In PlainTransformer, of what Hugging Face's BERT calls `name`."""
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def our_loss(config: Config, params: Any, batch: dict[str, np.ndarray]) -> jax.Array:
    outputs = forward(build_model(config.model), params, batch, None)
    return total_loss(compute_metrics(outputs, batch, config.train.label_smoothing), loss_weights(batch))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_same_weights_give_the_same_loss(make_config, shape, label_smoothing):
    from benchmarks.bench.pytorch import loss, torch_batch

    config = small(make_config, **SHAPES[shape])
    config = replace(config, train=replace(config.train, label_smoothing=label_smoothing))
    assert fits_transformers(config) == shape.startswith("transformers")
    params, batch = random_params(config), synthetic_batch(config, 8)
    # The two classes of the next-sentence head stand the other way in Hugging Face's BERT.
    theirs = torch_batch(config, 8, torch.device("cpu"))
    if config.model.next_sentence:
        theirs["next_sentence"] = 1 - theirs["next_sentence"]
    module = with_params(config, params).eval()
    with torch.no_grad():
        found = float(loss(module, theirs, label_smoothing))
    exact = float(jax.jit(lambda params: our_loss(config, params, batch))(params))
    assert found == pytest.approx(exact, abs=1e-4) and exact > 1


@pytest.mark.parametrize("shape", ["transformers", "one head"])
@pytest.mark.parametrize("peer", ["torch-eager", "torch-compile-layers"])
def test_a_step_moves_the_parameters_as_ours(make_config, shape, peer):
    """Gradients, clipping, micro-batches and AdamW: after one step with the same rate the
    parameters are those of optax.
    """
    from benchmarks.bench.pytorch import Training

    config = small(make_config, **SHAPES[shape], next_sentence=False)
    train = replace(config.train, accumulation_steps=2)
    optimizer_config = replace(config.optimizer, warmup_steps=0, learning_rate=1e-2, epsilon=1e-3, clip_norm=0.05)
    config = replace(config, train=train, optimizer=optimizer_config)
    params, batch = random_params(config), synthetic_batch(config, 8)
    optimizer = build_optimizer(config)
    gradients = jax.jit(jax.grad(lambda params: our_loss(config, params, batch)))(params)
    rate = learning_rate(config.optimizer, config.train)(0)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params, learning_rate=rate)
    expected = jax.tree.map(lambda old, change: old + np.asarray(change), params, updates)

    before, wanted = (with_params(config, each).state_dict() for each in (params, expected))
    module = with_params(config, params)
    trainer = Training(peer, module, config, torch.device("cpu"))
    trainer.run(1)
    trainer.check()
    for name, values in module.state_dict().items():
        moved = float((wanted[name] - before[name]).abs().max())
        # A key bias adds the same to all scores of a query: it has no gradient.
        assert moved > 1e-4 or name.endswith("key.bias"), name
        assert float((values - wanted[name]).abs().max()) <= 2e-3 * moved + 1e-7, name


def test_weight_decay_is_on_the_same_parameters(make_config):
    from benchmarks.bench.pytorch import adamw

    for shape in ("transformers", "one head"):
        config = small(make_config, **SHAPES[shape])
        params = random_params(config)
        module = with_params(config, params)
        decayed = adamw(module, config.optimizer, 1e-3).param_groups[0]["params"]
        assert sum(values.numel() for values in decayed) == count_decayed(config.model.residual, params)


def test_inference_of_all_peers(make_config):
    """The compiled programs answer as the eager one does, for every shape of a grid."""
    from benchmarks.bench.pytorch import TorchInference

    config = small(make_config, num_heads=2)
    eager, layers = (TorchInference(peer, "config", config) for peer in ("torch-eager", "torch-compile-layers"))
    layers._module.load_state_dict(eager._module.state_dict())
    for rows, length in ((1, 8), (2, 16)):
        for maker in (eager, layers):
            candidate = maker.candidate(rows, length)
            candidate.run(2)
            candidate.check()
            assert candidate.work == rows * length
        from benchmarks.bench.pytorch import torch_batch
        from mhsh.bench.steps import setting_config

        batch = torch_batch(setting_config(config, rows, length), rows, torch.device("cpu"))
        with torch.inference_mode():
            torch.testing.assert_close(eager._forward(batch)[0], layers._forward(batch)[0], rtol=1e-4, atol=1e-4)


def test_the_table_of_a_run_with_a_peer(tmp_path: Path):
    """In a process of its own, which has one device."""
    import json
    import subprocess
    import sys

    from tests.conftest import ROOT

    command = [sys.executable, "-m", "benchmarks.bench", "train", "--config=bert:2l8h", "--peer=torch-eager"]
    command += ["--rounds=2", "--repetitions=1", f"--out={tmp_path}/bench.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "bench.json").read_text())["cells"]
    ours, theirs = found["candidates"]
    assert theirs["name"] == "torch-eager" and theirs["implementation"] == "transformers BertForPreTraining"
    assert theirs["parameters"] == ours["parameters"] - ours["omega"] and ours["omega"] > 0
    assert theirs["flops"] == ours["flops"] and theirs["time_ratio"]["median"] > 0
    assert (
        ours["share_of_matmul"] > theirs["share_of_matmul"] * 0
        and "torch-eager: transformers BertForPreTraining 2x8" in done.stdout
    )


def test_the_environment_of_the_peers_can_be_written():
    """torch.__version__ is not a plain string, and msgspec refuses it when all is measured."""
    import msgspec

    from benchmarks.bench.peers import torch_environment

    found = msgspec.to_builtins(torch_environment())
    assert torch.__version__.startswith(found["versions"]["torch"])
