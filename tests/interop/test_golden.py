"""Checkpoints that transformers saved, and what it computed with them: imported, run, exported.
make_golden.py made the files.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from mhsh.interop.export_bert import export_bert
from mhsh.interop.import_bert import import_bert
from mhsh.models.losses import compute_metrics
from tests.interop.small_bert import GOLDEN, HEADS, as_batch, outputs, same, small_model, small_tokenizer

TOLERANCE = 1e-5  # absolute, fp32


def golden(name):
    """The imported checkpoint, its batch, and what transformers computed."""
    imported = import_bert(GOLDEN / name, small_model(**HEADS[name]), fresh_heads=False)
    with np.load(GOLDEN / name / "expected.npz") as file:
        expected = dict(file)
    batch = as_batch(expected["input_ids"], expected["attention_mask"], expected["token_type_ids"])
    return imported, batch, expected


def test_pretraining():
    imported, batch, expected = golden("pretraining")
    labels = expected["labels"]
    batch |= {
        "targets": np.maximum(labels, 0).astype(np.int32),
        "weights": (labels >= 0).astype(np.float32),
        "next_sentence": (1 - expected["next_sentence_label"]).astype(np.int32),
        "row_weights": np.ones(len(labels), np.float32),
    }
    result = outputs(imported.model, imported.params, batch)
    real = batch["inputs_segmentation"] > 0
    assert np.abs(expected["prediction_logits"]).max() > 1
    np.testing.assert_allclose(np.asarray(result.logits)[real], expected["prediction_logits"][real], rtol=0, atol=TOLERANCE)
    # There, class 0 says that the second segment follows.
    np.testing.assert_allclose(result.next_sentence[:, ::-1], expected["seq_relationship_logits"], rtol=0, atol=TOLERANCE)
    means = compute_metrics(result, batch)
    both = float(means["target_loss"].value() + means["next_sentence_loss"].value())
    assert both == pytest.approx(float(expected["loss"]), abs=TOLERANCE)


def test_classification():
    imported, batch, expected = golden("classification")
    assert imported.model.activation == "gelu_tanh" and imported.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    logits = outputs(imported.model, imported.params, batch).logits
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=TOLERANCE)


def test_span():
    imported, batch, expected = golden("span")
    logits = np.asarray(outputs(imported.model, imported.params, batch).logits)
    real = batch["inputs_segmentation"] > 0
    for end, name in enumerate(("start_logits", "end_logits")):
        np.testing.assert_allclose(logits[:, end][real], expected[name][real], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["pretraining", "classification", "span"])
def test_import_then_export_gives_the_same_tensors_and_config(tmp_path, name):
    imported, _, _ = golden(name)
    export_bert(tmp_path, imported.model, imported.params, small_tokenizer(), lowercase=True, labels=imported.labels)
    assert same(*(load_file(folder / "model.safetensors") for folder in (GOLDEN / name, tmp_path)))
    there, here = (json.loads((folder / "config.json").read_text()) for folder in (GOLDEN / name, tmp_path))
    assert {field: there.get(field) for field in here if field != "problem_type"} == {
        field: value for field, value in here.items() if field != "problem_type"
    }
