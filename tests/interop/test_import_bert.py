"""Importing: every tensor is accounted for, config.json is believed as far as the tensors bear it
out, nothing is filled in. Whatever order the classes have there, the logits are in the task's.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mhsh.data.glue import GLUE_TASKS
from mhsh.errors import UserError
from mhsh.interop.bert_tensors import parameters
from mhsh.interop.export_bert import export_bert
from mhsh.interop.import_bert import import_bert, reorder_for_task
from mhsh.models.costs import parameter_shapes
from tests.interop.small_bert import HEADS, as_batch, outputs, random_inputs, same, small_model, small_tokenizer, trained_params

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


@pytest.mark.parametrize("heads", HEADS)
def test_export_then_import_gives_the_same_model(written, heads):
    model = small_model(**HEADS[heads])
    imported = read(written / heads, heads)
    assert imported.model == model
    assert same(imported.params, trained_params(model))
    assert imported.fresh == imported.left_out == imported.notes == ()
    assert imported.files == (written / heads / "model.safetensors",)


def test_one_file_with_config_json_beside_it(written):
    assert same(read(written / "mlm" / "model.safetensors", "mlm").params, read(written / "mlm", "mlm").params)


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
    assert same(imported.params, read(written / "pretraining", "pretraining").params)
    assert imported.left_out == ()


def test_a_masked_language_model_that_kept_its_next_sentence_head(checkpoint, written):
    """As bert-base-uncased is published."""
    imported = read(checkpoint("pretraining", {"architectures": ["BertForMaskedLM"]}), "mlm")
    assert imported.model.next_sentence
    assert same(imported.params, read(written / "pretraining", "pretraining").params)


def test_a_pooler_that_nothing_reads_is_left_out_and_named(checkpoint, written):
    def add(tensors):
        tensors.update(dict(zip(POOLER, (np.ones(12, np.float32), np.ones((12, 12), np.float32)), strict=True)))

    imported = read(checkpoint("mlm", tensors=add), "mlm")
    assert imported.left_out == POOLER
    assert same(imported.params, read(written / "mlm", "mlm").params)


@pytest.mark.parametrize("heads", ["mlm", "pretraining", "span"])
def test_heads_tell_the_architecture_where_config_json_does_not(checkpoint, written, heads):
    assert read(checkpoint(heads, {"architectures": ...}), heads).model == read(written / heads, heads).model


def test_a_config_without_epsilon(checkpoint):
    imported = read(checkpoint("mlm", {"layer_norm_eps": ...}), "mlm")
    assert imported.model.layer_norm_epsilon == 1e-12 and "config.json has no layer_norm_eps" in imported.notes[0]


def test_fresh_heads_take_the_body_alone(written):
    """The pooler is the body's where it has one; its heads are left out."""
    imported = read(written / "pretraining", "classification", fresh_heads=True)
    assert imported.model.objective == "classification" and imported.model.num_classes == 3
    assert imported.fresh == ("classification/kernel", "classification/bias")
    assert set(imported.left_out) == {name for name in load_file(written / "pretraining" / "model.safetensors") if "cls." in name}
    whole = read(written / "pretraining", "pretraining").params
    assert same(imported.params, {part: whole[part] for part in ("embeddings", "encoder", "pooler")})

    imported = read(written / "mlm", "classification", fresh_heads=True)
    assert imported.fresh == ("pooler/kernel", "pooler/bias", "classification/kernel", "classification/bias")
    imported = read(written / "classification", "span", fresh_heads=True)
    assert imported.left_out == (*POOLER, "classifier.bias", "classifier.weight")


def test_a_body_without_heads(checkpoint):
    def behead(tensors):
        for name in [name for name in tensors if name.startswith("cls.")]:
            del tensors[name]

    folder = checkpoint("pretraining", {"architectures": ["BertModel"]}, behead)
    assert "it is a BERT without a head" in refusal(folder, "pretraining")
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
        (dict(architectures=["BertForQuestionAnswering"]), "objective 'span', the --config has model.objective = 'mlm'"),
        (dict(tie_word_embeddings=False), "tie_word_embeddings = false, but the tensor cls.predictions.decoder.weight is missing"),
    ],
)
def test_a_config_that_lies_or_is_of_another_model(checkpoint, config, message):
    line = refusal(checkpoint("mlm", config), "pretraining" if config.get("architectures") == ["BertForPreTraining"] else "mlm")
    assert message in line and "\n" not in line


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(id2label={"0": "a", "1": "b"}), "it has 2 labels, the --config has model.num_classes = 3"),
        (dict(id2label=...), "it has 2 labels, the --config has model.num_classes = 3"),
        (dict(id2label={"0": "a", "1": "b", "3": "c"}), "must name the classes 0, 1, ... without a gap"),
        (dict(problem_type="multi_label_classification"), "problem_type = 'multi_label_classification' with 3 labels"),
        (dict(problem_type="regression"), "problem_type = 'regression' with 3 labels"),
        (dict(architectures=...), "has no architectures, and the tensors do not tell which"),
    ],
)
def test_classes_that_mhsh_has_not(checkpoint, config, message):
    assert message in refusal(checkpoint("classification", config), "classification")


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        (dict(id2label=..., label2id=..., num_labels=3), ("LABEL_0", "LABEL_1", "LABEL_2")),
        (dict(num_labels=2), ("LABEL_0", "LABEL_1", "LABEL_2")),
        (dict(id2label={"0": 0, "1": 1, "2": 2}), ("0", "1", "2")),
    ],
)
def test_classes_that_are_counted_or_have_numbers_for_names(checkpoint, config, labels):
    """As old versions of transformers wrote them, and scripts whose labels are numbers."""
    assert read(checkpoint("classification", config), "classification").labels == labels


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
    with pytest.raises(UserError, match=r"model\.objective = 'clm', of which no BERT has the heads"):
        import_bert(written / "mlm", small_model(objective="clm"), fresh_heads=True)


TASKS = [task for task in GLUE_TASKS.values() if task.label_names]


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory):
    """Checkpoints with a head of 1, 2 and 3 outputs, whose config.json names none of them."""
    made = {}
    for count in (1, 2, 3):
        model = small_model(**HEADS["classification"] | {"num_classes": count})
        folder = tmp_path_factory.mktemp("classifiers")
        export_bert(folder, model, trained_params(model), small_tokenizer(), lowercase=True, labels=())
        made[count] = import_bert(folder, model, fresh_heads=False)
    return made


def logits(imported):
    return np.asarray(outputs(imported.model, imported.params, as_batch(*random_inputs(imported.model))).logits)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_logits_are_in_the_order_of_the_task(classifiers, task):
    """By --labels, and by id2label in other spellings."""
    there = classifiers[task.num_classes]
    theirs = logits(there)
    for names in itertools.permutations(task.label_names):
        written = tuple(name.upper().replace("_", " ") for name in names)
        for taken in (
            reorder_for_task(there, task, names),
            reorder_for_task(dataclasses.replace(there, labels=written), task, None),
            reorder_for_task(dataclasses.replace(there, labels=names[::-1]), task, names),
        ):
            ours = logits(taken)
            assert taken.labels == task.label_names
            for number, name in enumerate(task.label_names):
                np.testing.assert_array_equal(ours[:, number], theirs[:, names.index(name)])
        is_moved = names != task.label_names
        assert any("put into the order of" in note for note in reorder_for_task(there, task, names).notes) == is_moved
    assert any("--labels goes before" in note for note in taken.notes)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_an_order_that_nobody_has_said_is_asked_for(classifiers, task):
    there = classifiers[task.num_classes]
    others = (there.labels, [str(number) for number in range(task.num_classes)], [task.label_names[0]] * task.num_classes)
    for labels in others:
        with pytest.raises(
            UserError, match=rf"^the checkpoint calls its classes {labels[0]}, .* add --labels=..., these names of {task.name} "
        ):
            reorder_for_task(dataclasses.replace(there, labels=tuple(labels)), task, None)
    for given in (task.label_names[1:], (*task.label_names, "other"), [task.label_names[0]] * task.num_classes):
        with pytest.raises(UserError, match=r"^--labels=.*: give .*, each once, in the order of the checkpoint's outputs"):
            reorder_for_task(there, task, given)


def test_one_output_has_no_order_but_a_scale(classifiers):
    there = classifiers[1]
    taken = reorder_for_task(there, GLUE_TASKS["stsb"], None)
    assert taken.params is there.params and taken.labels == ()
    assert taken.notes == ("its one output is taken as the score of stsb, from 0 to 5",)
    with pytest.raises(UserError, match="--labels names classes, and stsb has one score"):
        reorder_for_task(there, GLUE_TASKS["stsb"], ["score"])
