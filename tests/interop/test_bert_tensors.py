"""Which tensor is which parameter: all of them, each once, laid out as a linear map of PyTorch
is.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from mhsh.errors import UserError
from mhsh.interop.bert_tensors import canonical_names, nested, parameters, to_tensors
from mhsh.models.costs import parameter_shapes
from tests.interop.small_bert import HEADS, small_model, trained_params


def by_path(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.parametrize("heads", HEADS)
def test_every_parameter_has_one_tensor(heads):
    model = small_model(**HEADS[heads], num_layers=3)
    rows = parameters(model)
    shapes = {row.path: (3,) * row.is_stacked + row.shape for row in rows}
    assert len(shapes) == len(rows)
    assert shapes == {path: leaf.shape for path, leaf in by_path(parameter_shapes(model)).items()}
    assert len({row.name for row in rows}) == len(rows)


def test_a_tensor_and_back_is_the_parameter():
    model = small_model(**HEADS["pretraining"])
    params = trained_params(model)
    tensors = to_tensors(model, params)
    back = {}
    for row in parameters(model):
        if row.is_stacked:
            back[row.path] = np.stack([row.from_tensor(tensors[row.full_name.format(layer)]) for layer in range(model.num_layers)])
        else:
            back[row.path] = row.from_tensor(tensors[row.full_name])
    for path, values in by_path(params).items():
        assert values.tobytes() == np.ascontiguousarray(back[path]).tobytes(), path
    assert jax.tree.structure(nested(back)) == jax.tree.structure(params)


def test_attention_is_laid_out_as_pytorch_reads_it():
    """y = x W^T + b on rows, heads side by side in the columns that are split among them."""
    model = small_model(**HEADS["mlm"])
    tensors, attention = to_tensors(model, params := trained_params(model)), params["encoder"]["layers"]["attention"]
    x = np.random.default_rng(0).standard_normal((5, model.embed_dim)).astype(np.float32)
    prefix = "bert.encoder.layer.1.attention."
    query = x @ tensors[prefix + "self.query.weight"].T + tensors[prefix + "self.query.bias"]
    expected = np.einsum("TD,DNH->TNH", x, attention["query_kernel"][1]) + attention["query_bias"][1]
    np.testing.assert_allclose(query.reshape(5, model.num_heads, model.head_dim), expected, rtol=0, atol=1e-5)
    out = query @ tensors[prefix + "output.dense.weight"].T
    np.testing.assert_allclose(out, np.einsum("TNH,NHD->TD", expected, attention["out_kernel"][1]), rtol=0, atol=1e-5)


def test_the_classes_of_the_next_sentence_change_places():
    model = small_model(**HEADS["pretraining"])
    params = trained_params(model)
    tensors = to_tensors(model, params)
    np.testing.assert_array_equal(tensors["cls.seq_relationship.weight"][0], params["next_sentence"]["kernel"][:, 1])
    np.testing.assert_array_equal(tensors["cls.seq_relationship.bias"], params["next_sentence"]["bias"][::-1])


def test_names_of_older_checkpoints():
    names = canonical_names(
        [
            "bert.embeddings.LayerNorm.gamma",
            "bert.encoder.layer.0.output.LayerNorm.beta",
            "encoder.layer.0.output.LayerNorm.weight",
            "bert.embeddings.position_ids",
            "cls.predictions.bias",
        ]
    )
    assert names == {
        "embeddings.LayerNorm.weight": "bert.embeddings.LayerNorm.gamma",
        "encoder.layer.0.output.LayerNorm.bias": "bert.encoder.layer.0.output.LayerNorm.beta",
        "encoder.layer.0.output.LayerNorm.weight": "encoder.layer.0.output.LayerNorm.weight",
        "cls.predictions.bias": "cls.predictions.bias",
    }
    with pytest.raises(UserError, match=r"embeddings\.LayerNorm\.beta and .*two tensors for one parameter"):
        canonical_names(["embeddings.LayerNorm.beta", "bert.embeddings.LayerNorm.bias"])
