"""Checkpoints that transformers saved, and what it computed with them: imported, run, exported.
make_golden.py made the files.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from mhsh.interop.bert_config import read_bert_config
from mhsh.interop.bert_tensors import canonical_names, parameters
from mhsh.interop.export_bert import export_bert
from mhsh.interop.tensors import Tensors, read_params
from mhsh.interop.weights import open_weights
from mhsh.models.losses import compute_metrics
from tests.interop.small_bert import GOLDEN, HEADS, as_batch, outputs, small_model, small_tokenizer

TOLERANCE = 1e-5  # absolute, fp32


def golden(name):
    """The checkpoint's model and parameters, its batch, and what transformers computed."""
    config, _ = read_bert_config(GOLDEN / name / "config.json")
    model = replace(small_model(**HEADS[name]), **config.fields)
    files = open_weights(GOLDEN / name)
    params = read_params(model, parameters(model), Tensors(canonical_names(files), files))
    with np.load(GOLDEN / name / "expected.npz") as file:
        expected = dict(file)
    batch = as_batch(expected["input_ids"], expected["attention_mask"], expected["token_type_ids"])
    return model, params, batch, expected


def test_pretraining():
    model, params, batch, expected = golden("pretraining")
    labels = expected["labels"]
    batch |= {
        "targets": np.maximum(labels, 0).astype(np.int32),
        "weights": (labels >= 0).astype(np.float32),
        "next_sentence": (1 - expected["next_sentence_label"]).astype(np.int32),
        "row_weights": np.ones(len(labels), np.float32),
    }
    result = outputs(model, params, batch)
    real = batch["inputs_segmentation"] > 0
    assert np.abs(expected["prediction_logits"]).max() > 1
    np.testing.assert_allclose(np.asarray(result.logits)[real], expected["prediction_logits"][real], rtol=0, atol=TOLERANCE)
    # There, class 0 says that the second segment follows.
    np.testing.assert_allclose(result.next_sentence[:, ::-1], expected["seq_relationship_logits"], rtol=0, atol=TOLERANCE)
    means = compute_metrics(result, batch)
    both = float(means["target_loss"].value() + means["next_sentence_loss"].value())
    assert both == pytest.approx(float(expected["loss"]), abs=TOLERANCE)


def test_classification():
    model, params, batch, expected = golden("classification")
    assert model.activation == "gelu_tanh"
    logits = outputs(model, params, batch).logits
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=TOLERANCE)


def test_span():
    model, params, batch, expected = golden("span")
    logits = np.asarray(outputs(model, params, batch).logits)
    real = batch["inputs_segmentation"] > 0
    for end, name in enumerate(("start_logits", "end_logits")):
        np.testing.assert_allclose(logits[:, end][real], expected[name][real], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["pretraining", "classification", "span"])
def test_import_then_export_gives_the_same_tensors_and_config(tmp_path, name):
    model, params, _, _ = golden(name)
    export_bert(tmp_path, model, params, small_tokenizer(), lowercase=True, labels=())
    before, after = (load_file(folder / "model.safetensors") for folder in (GOLDEN / name, tmp_path))
    assert before.keys() == after.keys()
    for tensor, values in before.items():
        assert values.dtype == after[tensor].dtype and values.tobytes() == after[tensor].tobytes(), tensor
    there, here = (json.loads((folder / "config.json").read_text()) for folder in (GOLDEN / name, tmp_path))
    assert {field: there.get(field) for field in here if field != "problem_type"} == {
        field: value for field, value in here.items() if field != "problem_type"
    }
