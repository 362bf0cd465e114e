"""Causal generation against the full forward pass, token by token."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsh.config.schema import ModelConfig
from mhsh.models.bert import Bert
from mhsh.models.build import build_model, forward
from mhsh.models.costs import parameter_shapes
from mhsh.models.generation import (
    Sampling,
    advance,
    decoding_params,
    empty_cache,
    generate,
    next_logits,
    split_caches,
    unrolls,
)
from mhsh.planning.hlo import execution, parse_module, shape_bytes

END = 3


@pytest.fixture(scope="module")
def causal(tiny) -> Any:
    """causal(num_heads=1): a causal model; token types as a config may have them."""
    return functools.partial(tiny, objective="clm", next_sentence=False)


def built(config: ModelConfig) -> Bert:
    model = build_model(config)
    assert isinstance(model, Bert)
    return model


def full_logits(model: Bert, params: Any, tokens: np.ndarray) -> np.ndarray:
    batch = {
        "inputs": tokens,
        "inputs_position": np.tile(np.arange(tokens.shape[1], dtype=np.int32), (len(tokens), 1)),
        "inputs_segmentation": np.ones_like(tokens),
        "token_types": np.zeros_like(tokens),
    }
    return np.asarray(compiled_pass(model.config)(params, batch))


@functools.cache
def compiled_pass(config: ModelConfig) -> Any:
    model = built(config)
    return jax.jit(lambda params, batch: forward(model, params, batch, None).logits)


VARIANTS = [
    {"residual": "pre_ln"},  # with a final LayerNorm
    {"residual": "ln_scaling"},  # which counts its layers
    {"residual": "hybrid_norm"},  # which normalises what is cached
    {"residual": "block_attn_res", "residual_blocks": 2, "loops": 2},
    {"residual": "mhc_lite", "residual_streams": 2},
    {"positions": "sinusoidal"},
    {"qk_norm": True},
    {"num_heads": 1, "num_layers": 6, "residual": "admin"},
    {"num_token_types": 0, "activation": "relu"},
    {"positions": "rotary", "num_kv_heads": 1},
    {"positions": "rotary", "num_heads": 4, "num_kv_heads": 2, "qk_norm": True, "norm": "rms", "bias": False, "head": "tied"},
    {"positions": "rotary", "mlp": "gated", "activation": "silu", "residual": "peri_ln", "head": "untied"},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: "-".join(map(str, changes.values())))
def test_token_by_token_is_the_full_pass_at_every_position(changes, causal, random_params):
    config = causal(**changes)
    model, params = built(config), random_params(config)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 11)).astype(np.int32)
    wanted = full_logits(model, params, tokens)

    @jax.jit
    def step(params, token, place, caches):
        mask = jnp.broadcast_to(jnp.arange(11) <= place, (2, 1, 11))
        hidden, caches = advance(model, params, token, jnp.full((2, 1), place), place, mask, caches)
        return next_logits(model, params, hidden), caches

    caches = empty_cache(config, 2, 11, config.loops, config.num_layers)
    for place in range(11):
        if place == 6:  # from here on without a scan over layers
            params, caches = decoding_params(config, params), split_caches(config, caches)
        found, caches = step(params, tokens[:, place : place + 1], jnp.int32(place), caches)
        np.testing.assert_allclose(found[:, 0], wanted[:, place], atol=1e-5 * np.abs(wanted).max(), rtol=0)


def slow_generation(model: Bert, params: Any, prompt: list[int], limit: int, allowed: np.ndarray, room: int) -> list[int]:
    """The likeliest token after the whole text, again and again, by a full pass over `room` tokens
    for each.
    """
    text = list(prompt)
    while len(text) < len(prompt) + limit:
        padded = np.array([text + [0] * (room - len(text))], np.int32)
        logits = np.where(allowed, full_logits(model, params, padded)[0, len(text) - 1], -np.inf)
        if (token := int(logits.argmax())) == END:
            break
        text.append(token)
    return text[len(prompt) :]


@settings(max_examples=8)
@given(data=st.data())
@pytest.mark.parametrize("residual", ["admin", "ln_scaling"])
def test_the_likeliest_tokens_are_those_of_full_passes(residual, data, causal, random_params):
    config = causal(residual=residual)
    model, params = built(config), random_params(config, seed=data.draw(st.integers(0, 3)))
    prompts = data.draw(st.lists(st.lists(st.integers(4, 47), min_size=1, max_size=6), min_size=3, max_size=3))
    limits = data.draw(st.lists(st.integers(0, 8), min_size=3, max_size=3))
    allowed = np.random.default_rng(data.draw(st.integers(0, 3))).random(48) < 0.8
    allowed[[END, 4]] = True
    found = written(model, params, prompts, limits, allowed, 0.0)
    assert found == [
        slow_generation(model, params, prompt, limit, allowed, 16) for prompt, limit in zip(prompts, limits, strict=True)
    ]


@functools.cache
def compiled(config: ModelConfig, top_k: int) -> Any:
    return jax.jit(functools.partial(generate, built(config), room=8, end=END, top_k=top_k))


def written(model, params, prompts, limits, allowed, temperature, *, seed=0, top_k=0) -> list[list[int]]:
    rows = np.full((len(prompts), 6), 9, np.int32)
    for row, prompt in zip(rows, prompts, strict=True):
        row[: len(prompt)] = prompt
    batch = {
        "inputs": rows,
        "lengths": np.array([len(prompt) for prompt in prompts], np.int32),
        "limits": np.array(limits, np.int32),
        "row": np.arange(len(prompts), dtype=np.int32),
    }
    sampling = Sampling(jnp.float32(temperature), jax.random.key(seed), jnp.asarray(allowed))
    found = compiled(model.config, top_k)(params, batch, sampling)
    return [np.asarray(tokens)[:count].tolist() for tokens, count in zip(found.tokens, found.lengths, strict=True)]


def test_of_large_layers_no_token_copies_a_kernel_or_a_cache(causal, random_params):
    config = causal(num_layers=2, num_heads=4, head_dim=64, embed_dim=512, mlp_dim=2048, residual="pre_ln")
    params, allowed = random_params(config), np.ones(48, bool)
    batch = {"inputs": np.full((1, 6), 9, np.int32)} | {name: np.array([6], np.int32) for name in ("lengths", "limits", "row")}
    sampling = Sampling(jnp.float32(0), jax.random.key(0), jnp.asarray(allowed))
    program = compiled(config, 0).lower(params, batch, sampling).compile()
    token_loops: list[str] = []  # those that end when all rows do
    steps = [*execution(parse_module(program.as_text()), token_loops)]
    passed = ("tuple", "get-tuple-element", "parameter", "bitcast")
    made = [
        step.instruction
        for step in steps
        if step.frame.rpartition("/")[2] in token_loops
        and step.instruction.opcode not in passed
        and "dynamic-update-slice" not in step.instruction.name  # into a cache, in its place
    ]
    assert made and max(shape_bytes(one.shape) for one in made) <= 4 * config.mlp_dim
    tokens = np.asarray(program(params, batch, sampling).tokens)[0, :6].tolist()
    wanted = slow_generation(built(config), params, [9] * 6, 6, allowed, 16)
    assert tokens == wanted + [0] * (6 - len(wanted))


def test_only_a_few_large_layers_are_unrolled(make_config):
    models = {name: make_config("bert", name).model for name in ("24l16h", "48l8h", "12l12h", "96l4h", "384l1h", "144l1h", "6l2h")}
    unrolled = [name for name, model in models.items() if unrolls(model, parameter_shapes(model))]
    assert unrolled == ["24l16h", "48l8h", "12l12h"]


def test_draws_have_the_probabilities_of_the_softmax(causal, random_params):
    config = causal()
    model, params = built(config), random_params(config)
    allowed = np.ones(48, bool)
    allowed[END] = False
    prompts, temperature = [[5, 6]] * 64, 0.7
    firsts = np.array([written(model, params, prompts, [1] * 64, allowed, temperature, seed=seed) for seed in range(30)]).ravel()
    logits = full_logits(model, params, np.array([[5, 6]], np.int32))[0, 1] / temperature
    logits[END] = -np.inf
    wanted = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    found = np.bincount(firsts, minlength=48) / len(firsts)
    # Five standard deviations of each share.
    assert (np.abs(found - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / len(firsts)) + 1e-9).all()
    best = set(np.argsort(-logits)[:3].tolist())
    drawn = {token for row in written(model, params, prompts, [1] * 64, allowed, 5.0, top_k=3) for token in row}
    assert drawn <= best and len(drawn) > 1
