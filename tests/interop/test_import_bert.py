"""Importing: every tensor is accounted for, config.json is believed as far as the tensors bear it
out, nothing is filled in.
"""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mhsh.errors import UserError
from mhsh.interop.bert_tensors import parameters
from mhsh.interop.export_bert import export_bert
from mhsh.interop.import_bert import import_bert
from mhsh.models.costs import parameter_shapes
from tests.interop.small_bert import HEADS, small_model, small_tokenizer, trained_params

POOLER = ("bert.pooler.dense.bias", "bert.pooler.dense.weight")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint of each kind of heads, as mhsh exports it."""
    root = tmp_path_factory.mktemp("checkpoints")
    for heads, fields in HEADS.items():
        model = small_model(**fields)
        (root / heads).mkdir()
        export_bert(root / heads, model, trained_params(model), small_tokenizer(), lowercase=True, labels=())
    return root


@pytest.fixture
def checkpoint(written, tmp_path):
    """checkpoint("mlm", config={...}, tensors=function): a copy with fields of config.json replaced
    (... removes one) and tensors changed.
    """

    def make(heads, config=None, tensors=None):
        folder = tmp_path / "checkpoint"
        shutil.copytree(written / heads, folder)
        fields = json.loads((folder / "config.json").read_text()) | (config or {})
        (folder / "config.json").write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))
        if tensors is not None:
            changed = load_file(folder / "model.safetensors")
            tensors(changed)
            save_file(changed, folder / "model.safetensors")
        return folder

    return make


def read(folder, heads, **options):
    return import_bert(folder, small_model(**HEADS[heads]), **{"fresh_heads": False} | options)


def refusal(folder, heads, **options):
    with pytest.raises(UserError) as error:
        read(folder, heads, **options)
    return str(error.value)


def equal(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.mark.parametrize("heads", ["mlm", "pretraining"])
def test_export_then_import_gives_the_same_model(written, heads):
    model = small_model(**HEADS[heads])
    imported = read(written / heads, heads)
    assert imported.model == model
    assert equal(imported.params, trained_params(model))
    assert imported.fresh == imported.left_out == imported.notes == ()
    assert imported.files == (written / heads / "model.safetensors",)


def test_one_file_with_config_json_beside_it(written):
    assert equal(read(written / "mlm" / "model.safetensors", "mlm").params, read(written / "mlm", "mlm").params)


@pytest.mark.parametrize("heads", HEADS)
def test_every_parameter_has_one_tensor(heads):
    model = small_model(**HEADS[heads], num_layers=3)
    rows = parameters(model)
    paths = jax.tree_util.tree_leaves_with_path(parameter_shapes(model))
    shapes = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in paths}
    assert {row.path: (3,) * row.is_stacked + row.shape for row in rows} == shapes
    assert len({row.name for row in rows}) == len(rows) == len(shapes)


def older(tensors):
    """The names of TensorFlow's checkpoints, the buffers and the tied tensors that older versions
    saved.
    """
    for name in list(tensors):
        if "LayerNorm" in name:
            tensors[name.replace(".weight", ".gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)
    tensors["bert.embeddings.position_ids"] = np.arange(16)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]


def bare(tensors):
    for name in list(tensors):
        tensors[name.removeprefix("bert.")] = tensors.pop(name)


@pytest.mark.parametrize("change", [older, bare])
def test_other_names_for_the_same_tensors(checkpoint, written, change):
    imported = read(checkpoint("pretraining", tensors=change), "pretraining")
    assert equal(imported.params, read(written / "pretraining", "pretraining").params)
    assert imported.left_out == ()


def test_a_masked_language_model_that_kept_its_next_sentence_head(checkpoint, written):
    """As bert-base-uncased is published."""
    imported = read(checkpoint("pretraining", {"architectures": ["BertForMaskedLM"]}), "mlm")
    assert imported.model.next_sentence
    assert equal(imported.params, read(written / "pretraining", "pretraining").params)


def test_a_pooler_that_nothing_reads_is_left_out_and_named(checkpoint, written):
    def add(tensors):
        tensors.update(dict(zip(POOLER, (np.ones(12, np.float32), np.ones((12, 12), np.float32)), strict=True)))

    imported = read(checkpoint("mlm", tensors=add), "mlm")
    assert imported.left_out == POOLER
    assert equal(imported.params, read(written / "mlm", "mlm").params)


@pytest.mark.parametrize("heads", ["mlm", "pretraining"])
def test_heads_tell_the_architecture_where_config_json_does_not(checkpoint, written, heads):
    assert read(checkpoint(heads, {"architectures": ...}), heads).model == read(written / heads, heads).model


def test_a_config_without_epsilon(checkpoint):
    imported = read(checkpoint("mlm", {"layer_norm_eps": ...}), "mlm")
    assert imported.model.layer_norm_epsilon == 1e-12 and "config.json has no layer_norm_eps" in imported.notes[0]


def test_fresh_heads_take_the_body_alone(written):
    """The pooler is the body's where it has one; its heads are left out."""
    imported = read(written / "classification", "pretraining", fresh_heads=True)
    assert imported.model.objective == "mlm" and imported.model.next_sentence
    assert {path.split("/")[0] for path in imported.fresh} == {"prediction", "next_sentence"}
    assert imported.left_out == ("classifier.bias", "classifier.weight")
    whole = trained_params(small_model(**HEADS["classification"]))
    assert equal(imported.params, {part: whole[part] for part in ("embeddings", "encoder", "pooler")})

    imported = read(written / "span", "pretraining", fresh_heads=True)
    assert {path.split("/")[0] for path in imported.fresh} == {"pooler", "prediction", "next_sentence"}
    imported = read(written / "pretraining", "mlm", fresh_heads=True)
    assert set(imported.left_out) >= {*POOLER, "cls.seq_relationship.weight", "cls.predictions.bias"}


def test_a_body_without_heads(checkpoint):
    def behead(tensors):
        for name in [name for name in tensors if name.startswith("cls.")]:
            del tensors[name]

    folder = checkpoint("pretraining", {"architectures": ["BertModel"]}, behead)
    assert "it is a BertModel without the heads of pre-training" in refusal(folder, "pretraining")
    assert "its body alone with --fresh-heads" in refusal(folder, "pretraining")
    fresh = read(folder, "pretraining", fresh_heads=True).fresh
    assert {path.split("/")[0] for path in fresh} == {"prediction", "next_sentence"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(vocab_size=30), "bert.embeddings.word_embeddings.weight is [31, 12], by config.json it is [30, 12]"),
        (dict(num_hidden_layers=2_000_000_000), "the tensor bert.encoder.layer.2.attention.self.query.weight is missing, by"),
        (dict(num_hidden_layers=1), "made of the tensor bert.encoder.layer.1.attention.output.LayerNorm.bias (16 such)"),
        (dict(type_vocab_size=0), "token_type_embeddings.weight is [2, 12], by"),
        (dict(num_attention_heads=5), "hidden_size = 12 is not a multiple of num_attention_heads = 5"),
        (dict(num_attention_heads=0), "Expected `int` >= 1 - at `$.num_attention_heads`"),
        (dict(hidden_size="12"), "Expected `int`, got `str` - at `$.hidden_size`"),
        (dict(vocab_size=10**30), "Expected `int` <= 2147483647 - at `$.vocab_size`"),
        (dict(hidden_size=...), "missing required field `hidden_size`"),
        (dict(layer_norm_eps=10**400), "Number out of range - at `$.layer_norm_eps`"),
        (dict(model_type="roberta"), "Invalid enum value 'roberta' - at `$.model_type`"),
        (dict(hidden_act="swish"), "Invalid enum value 'swish' - at `$.hidden_act`"),
        (dict(position_embedding_type="relative_key"), "Invalid enum value 'relative_key' - at `$.position_embedding_type`"),
        (dict(add_cross_attention=True), "is_decoder and add_cross_attention must be false"),
        (dict(architectures=["BertForTokenClassification"]), "architectures = ['BertForTokenClassification'] is none of Bert"),
        (dict(architectures=["BertForMaskedLM", "BertModel"]), "Expected `array` of length <= 1 - at `$.architectures`"),
        (dict(architectures=["BertForPreTraining"]), "the tensor bert.pooler.dense.weight is missing, by config.json it is"),
        (dict(architectures=["BertForQuestionAnswering"]), "it is a BertForQuestionAnswering without the heads"),
        (dict(tie_word_embeddings=False), "tie_word_embeddings = false, but the tensor cls.predictions.decoder.weight is missing"),
    ],
)
def test_a_config_that_lies_or_is_of_another_model(checkpoint, config, message):
    line = refusal(checkpoint("mlm", config), "pretraining" if config.get("architectures") == ["BertForPreTraining"] else "mlm")
    assert message in line and "\n" not in line


def remove(name):
    return lambda tensors: tensors.pop(name)


def put(name, values):
    return lambda tensors: tensors.update({name: values})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            remove("bert.encoder.layer.1.output.dense.bias"),
            "bert.encoder.layer.1.output.dense.bias is missing, by config.json it is",
        ),
        (remove("cls.predictions.bias"), "the tensor cls.predictions.bias is missing, by config.json it is [31]"),
        (put("bert.encoder.layer.0.extra", np.zeros(1, np.float32)), "no parameter is made of the tensor bert.encoder.layer.0.ex"),
        (put("classifier.bias", np.zeros(1, np.float32)), "no parameter is made of the tensor classifier.bias"),
        (put("cls.predictions.bias", np.full(31, np.nan, np.float32)), "cls.predictions.bias holds numbers that are not finite"),
        (put("cls.predictions.decoder.weight", np.zeros((31, 12), np.float32)), "decoder.weight differs from bert.embeddings.word"),
        (put("cls.predictions.decoder.bias", np.zeros(31, np.float32)), "decoder.bias differs from cls.predictions.bias"),
        (put("embeddings.LayerNorm.gamma", np.ones(12, np.float32)), "two tensors for one parameter"),
    ],
)
def test_tensors_that_are_wrong(checkpoint, change, message):
    line = refusal(checkpoint("mlm", tensors=change), "mlm")
    assert message in line and "\n" not in line


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"a": ' * 5000])
def test_a_config_that_is_no_json(checkpoint, content):
    folder = checkpoint("mlm")
    (folder / "config.json").write_bytes(content)
    assert "config.json" in refusal(folder, "mlm")
    (folder / "config.json").unlink()
    assert "does not exist" in refusal(folder, "mlm")


def test_objectives_without_a_bert(written):
    for objective in ("clm", "classification"):
        for fresh_heads in (True, False):
            with pytest.raises(UserError, match=rf"masked language model, the --config has model\.objective = '{objective}'"):
                import_bert(written / "mlm", small_model(objective=objective), fresh_heads=fresh_heads)
