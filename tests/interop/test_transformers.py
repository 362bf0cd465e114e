"""Against transformers on PyTorch: what is imported, and what is exported, computes the same there
and here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

import mhsh
from mhsh.config.schema import ModelConfig
from mhsh.interop.export_bert import export_bert
from mhsh.interop.import_bert import import_bert
from mhsh.interop.vocabulary import read_vocabulary
from mhsh.models.losses import compute_metrics
from tests.interop.small_bert import (
    HEADS,
    TOKENS,
    as_batch,
    outputs,
    random_inputs,
    same,
    small_config,
    small_model,
    small_tokenizer,
    trained_params,
)
from tests.runs import saved_run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

# Absolute, in fp32, on logits of size 1 to 10: import and plain export; folded and padded models.
EXACT = 1e-5
FOLDED = 1e-4

SHAPES = {
    "2l3h": {},
    "1l1h": dict(num_hidden_layers=1, num_attention_heads=1, hidden_size=8, intermediate_size=5, type_vocab_size=1),
    "6l4h": dict(num_hidden_layers=6, num_attention_heads=4, hidden_size=32, intermediate_size=64, vocab_size=101),
    "12l12h": dict(num_hidden_layers=12, num_attention_heads=12, hidden_size=96, intermediate_size=384, type_vocab_size=3),
}


def torch_model(kind: str, seed: int = 0, **fields: Any) -> Any:
    """A random BertFor... in which nothing is silent."""
    config = transformers.BertConfig(
        **{
            "vocab_size": 31,
            "hidden_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "intermediate_size": 20,
            "max_position_embeddings": 16,
        }
        | fields
    )
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if name.endswith("LayerNorm.weight"):
                values.normal_(1.0, 0.2)
            elif values.ndim == 2 and "embeddings" not in name:
                values.normal_(0.0, values.shape[1] ** -0.5)
            else:
                values.normal_(0.0, 0.2)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in TOKENS), encoding="utf-8")
    return folder


def run_torch(model: Any, inputs: tuple[np.ndarray, np.ndarray, np.ndarray], **labels: Any) -> Any:
    ids, mask, types = (torch.from_numpy(values) for values in inputs)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, token_type_ids=types, **labels)


def largest_difference(model: ModelConfig, params: Any, there: Any, inputs: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
    """Over all logits, of real positions where they are of positions."""
    ours, theirs = jax.device_get(outputs(model, params, as_batch(*inputs))), run_torch(there, inputs)
    real = inputs[1] > 0
    if model.objective == "mlm":
        pairs = [(ours.logits[real], (theirs.prediction_logits if model.next_sentence else theirs.logits).numpy()[real])]
        if model.next_sentence:
            pairs.append((ours.next_sentence[:, ::-1], theirs.seq_relationship_logits.numpy()))
    elif model.objective == "span":
        pairs = [
            (ours.logits[:, end][real], logits.numpy()[real]) for end, logits in enumerate((theirs.start_logits, theirs.end_logits))
        ]
    else:
        pairs = [(ours.logits, theirs.logits.numpy())]
    for a, b in pairs:
        assert a.shape == b.shape and 0.05 < np.abs(b).max() < 30
    return max(np.abs(a - b).max() for a, b in pairs)


def exported(model: ModelConfig, params: Any, folder: Path) -> Any:
    """The model of transformers that loads what mhsh exports, all of it."""
    folder.mkdir()
    export_bert(folder, model, params, small_tokenizer(), lowercase=True, labels=())
    kind = {
        "mlm": "AutoModelForPreTraining" if model.next_sentence else "AutoModelForMaskedLM",
        "classification": "AutoModelForSequenceClassification",
        "span": "AutoModelForQuestionAnswering",
    }[model.objective]
    there, loading = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert there.dtype == torch.float32
    return there.eval()


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_imported_pretraining_model_and_back(tmp_path, shape, hidden_act):
    """Logits, both losses, and after export the same tensors and the same logits once more."""
    there = torch_model("BertForPreTraining", hidden_act=hidden_act, **SHAPES[shape])
    folder = saved(there, tmp_path / "there")
    base = small_model(**HEADS["pretraining"])
    imported = import_bert(folder, base, fresh_heads=False)
    model = imported.model
    assert not imported.fresh and not imported.left_out and not imported.notes
    inputs = random_inputs(model)
    if model.num_token_types == 1:
        inputs = (*inputs[:2], np.zeros_like(inputs[2]))
    assert largest_difference(model, imported.params, there, inputs) < EXACT

    rng = np.random.default_rng(1)
    ids, mask, types = inputs
    targets = np.where((rng.random(ids.shape) < 0.4) & (mask > 0), rng.integers(0, model.vocab_size, ids.shape), -100)
    follows = rng.integers(0, 2, len(ids))
    batch = as_batch(ids, mask, types) | {
        "targets": np.maximum(targets, 0).astype(np.int32),
        "weights": (targets >= 0).astype(np.float32),
        "next_sentence": follows.astype(np.int32),
        "row_weights": np.ones(len(ids), np.float32),
    }
    means = compute_metrics(outputs(model, imported.params, batch), batch)
    result = run_torch(there, inputs)
    cross_entropy = torch.nn.functional.cross_entropy
    of_tokens = cross_entropy(result.prediction_logits.reshape(-1, model.vocab_size), torch.from_numpy(targets).reshape(-1))
    of_rows = cross_entropy(result.seq_relationship_logits, torch.from_numpy(1 - follows))
    assert abs(float(means["target_loss"].value()) - float(of_tokens)) < EXACT
    assert abs(float(means["next_sentence_loss"].value()) - float(of_rows)) < EXACT
    both = run_torch(there, inputs, labels=torch.from_numpy(targets), next_sentence_label=torch.from_numpy(1 - follows)).loss
    assert abs(float(sum(means[f"{name}_loss"].value() for name in ("target", "next_sentence"))) - float(both)) < EXACT

    again = exported(model, imported.params, tmp_path / "again")
    assert same(load_file(folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors"))
    assert largest_difference(model, imported.params, again, inputs) < EXACT


@pytest.mark.parametrize(
    ("kind", "heads", "fields"),
    [
        ("BertForMaskedLM", "mlm", {}),
        ("BertForSequenceClassification", "classification", dict(num_labels=3)),
        ("BertForSequenceClassification", "regression", dict(num_labels=1)),
        ("BertForQuestionAnswering", "span", {}),
    ],
)
def test_the_other_heads_imported_and_back(tmp_path, kind, heads, fields):
    there = torch_model(kind, **fields)
    folder = saved(there, tmp_path / "there")
    imported = import_bert(folder, small_model(**HEADS[heads]), fresh_heads=False)
    inputs = random_inputs(imported.model)
    assert largest_difference(imported.model, imported.params, there, inputs) < EXACT
    again = exported(imported.model, imported.params, tmp_path / "again")
    assert type(again) is type(there) and again.config.num_labels == there.config.num_labels
    assert same(load_file(folder / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_imported_as_it_is(tmp_path, dtype):
    there = torch_model("BertForMaskedLM").to(getattr(torch, dtype))
    folder = saved(there, tmp_path / "there")
    imported = import_bert(folder, small_model(**HEADS["mlm"]), fresh_heads=False)
    assert largest_difference(imported.model, imported.params, there.float(), random_inputs(imported.model)) < EXACT


def test_a_checkpoint_in_several_files(tmp_path):
    there = torch_model("BertForPreTraining", **SHAPES["6l4h"])
    there.save_pretrained(tmp_path / "there", max_shard_size="20KB")
    assert len(list((tmp_path / "there").glob("*.safetensors"))) > 3
    imported = import_bert(tmp_path / "there", small_model(**HEADS["pretraining"]), fresh_heads=False)
    assert largest_difference(imported.model, imported.params, there, random_inputs(imported.model)) < EXACT


def test_a_body_alone(tmp_path):
    """BertModel's tensors have no prefix; its pooled output is what the classes are read from."""
    there = torch_model("BertModel")
    folder = saved(there, tmp_path / "there")
    imported = import_bert(folder, small_model(**HEADS["classification"]), fresh_heads=True)
    assert imported.fresh == ("classification/kernel", "classification/bias")
    model = imported.model
    read = {"kernel": np.eye(model.embed_dim, dtype=np.float32), "bias": np.zeros(model.embed_dim, np.float32)}
    inputs = random_inputs(model)
    wide = replace(model, num_classes=model.embed_dim)
    pooled = outputs(wide, imported.params | {"classification": read}, as_batch(*inputs)).logits
    assert np.abs(pooled - run_torch(there, inputs).pooler_output.numpy()).max() < EXACT


# Head widths and groupings as of the paper's models, at a width that runs in seconds.
GROUPED = {
    "24l16h": dict(num_layers=24, num_heads=16, head_dim=4, embed_dim=64, mlp_dim=256),
    "12l1h": dict(num_layers=12, num_heads=1, head_dim=4, embed_dim=48, mlp_dim=16),
    "144l1h": dict(num_layers=144, num_heads=1, head_dim=4, embed_dim=48, mlp_dim=16),
    "384l1h": dict(num_layers=384, num_heads=1, head_dim=4, embed_dim=64, mlp_dim=16),
    "12l5h": dict(num_layers=12, num_heads=5, head_dim=4, embed_dim=48, mlp_dim=80),
}


@pytest.mark.parametrize("residual", ["admin", "deepnorm", "post_ln"])
@pytest.mark.parametrize("shape", GROUPED)
def test_a_deep_model_is_a_plain_bert(tmp_path, shape, residual):
    """Omega and alpha folded, heads padded: what mhsh computes with them is what transformers
    computes without.
    """
    model = small_model(**HEADS["pretraining"], **GROUPED[shape], residual=residual)
    params = trained_params(model)
    there = exported(model, params, tmp_path / "there")
    difference = largest_difference(model, params, there, random_inputs(model))
    print(f"{shape} {residual}: {difference:.1e}")  # for docs/interop.md
    assert difference < FOLDED


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_every_head_is_exported(tmp_path, heads, activation):
    """With sines for positions and without token types as well: a BERT of transformers has both as
    tables.
    """
    model = small_model(
        **HEADS[heads], num_heads=2, residual="admin", activation=activation, positions="sinusoidal", num_token_types=0
    )
    params = trained_params(model)
    there = exported(model, params, tmp_path / "there")
    assert largest_difference(model, params, there, random_inputs(model)) < EXACT
    if heads == "regression":
        assert there.config.problem_type == "regression"


@pytest.mark.parametrize("heads", ["mlm", "classification", "span"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_gives_the_same_ids(tmp_path, lowercase, heads):
    """With [SEP] in a text as well, but for a masked model, whose [MASK] transformers must find."""
    model, tokenizer = small_model(**HEADS[heads]), small_tokenizer(lowercase)
    folder = tmp_path / "there"
    folder.mkdir()
    export_bert(folder, model, trained_params(model), tokenizer, lowercase=lowercase, labels=())
    there = transformers.AutoTokenizer.from_pretrained(folder)
    marks = "the [SEP] number[PAD] [MASK] [UNK]"
    for text in (
        "The numbers, going.",
        "é É THE Go  numbers\tof\u3000the 中国",
        "unknown",
        "",
        *([] if heads == "mlm" else [marks]),
    ):
        ids = [tokenizer.cls_id, *tokenizer.encode_batch([text])[0], tokenizer.sep_id]
        assert there(text)["input_ids"] == ids
    split = there(marks, split_special_tokens=True)["input_ids"]
    assert split[1:-1] == tokenizer.encode_batch([marks])[0].tolist()
    pair = there("the number", "of a number", padding="max_length")
    assert len(pair["input_ids"]) == model.max_positions and pair["token_type_ids"][4:8] == [1, 1, 1, 1]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_a_tokenizer_that_transformers_wrote(tmp_path, do_lower_case):
    """transformers 5 writes tokenizer.json alone."""
    (tmp_path / "vocab.txt").write_text("".join(token + "\n" for token in TOKENS), encoding="utf-8")
    there = transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=do_lower_case)
    there.save_pretrained(tmp_path / "there")
    assert not (tmp_path / "there" / "vocab.txt").exists()
    assert read_vocabulary(tmp_path / "there") == (TOKENS, do_lower_case)


def test_a_text_has_the_logits_of_transformers(tmp_path: Path) -> None:
    """From text to logits on both sides, each with its own tokenizer; [MASK] is a mask for both."""
    config = small_config(num_heads=2, embed_dim=8, vocab_size=32)
    params = trained_params(config.model)
    run = mhsh.load(saved_run(tmp_path / "run", config, small_tokenizer(), params))
    there = exported(config.model, params, tmp_path / "exported")
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path / "exported")
    for text in ("The [MASK] goes, of numbers.", "going xyz", "[MASK][MASK] the"):
        with torch.no_grad():
            answer = there(**tokenizer(text, return_tensors="pt"))
        wanted = (answer.prediction_logits if config.model.next_sentence else answer.logits)[0].numpy()
        found = run.logits(text)
        assert found.real.all() and found.logits.shape[1] == len(wanted)
        np.testing.assert_allclose(found.logits[0, :, : wanted.shape[1]], wanted, atol=FOLDED)
