"""Runs in hand: logits, losses and texts against plain references, and what a caller may do
wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mhsh
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, to_dict
from mhsh.data.subword import BOS_ID, EOS_ID
from mhsh.data.wordpiece import ByteTokenizer
from mhsh.errors import UserError
from mhsh.evaluation.translation import model_decoder, translate_lines
from mhsh.models.build import build_model, forward
from tests.evaluation import small_translation
from tests.interop import small_bert
from tests.runs import saved_run

TEXTS = ["The number is of a number.", "goes", "going the"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    return lambda *run: saved_run(tmp_path_factory.mktemp("runs") / "run", *run)


def causal_config() -> Config:
    fields = to_dict(small_bert.small_config(objective="clm", next_sentence=False, num_heads=2, vocab_size=264, max_positions=48))
    fields["model"] |= dict(residual="admin", embed_dim=16, mlp_dim=32)
    fields["data"] |= dict(tokenizer="bytes", max_predictions=0, mask_fraction=0.0, source="text:nowhere/*.txt")
    return from_dict(fields)


@pytest.fixture(scope="module")
def causal(saved: Callable[..., str]) -> str:
    config = causal_config()
    return saved(config, ByteTokenizer(), *(small_bert.trained_params(config.model, seed) for seed in (1, 2)))


@pytest.fixture(scope="module")
def masked(saved: Callable[..., str]) -> str:
    config = small_bert.small_config(num_heads=2, vocab_size=32, embed_dim=16)
    return saved(config, small_bert.small_tokenizer(), small_bert.trained_params(config.model))


@pytest.fixture(scope="module")
def translating(saved: Callable[..., str]) -> str:
    return saved(small_translation.small_config(), small_translation.small_tokenizer(), small_translation.random_params(4))


def plain(config: Config, params: Any, tokens: list[int], positions: list[int]) -> np.ndarray:
    """The logits of one text, by itself and not padded; for mlm at `positions`."""
    row = np.array([tokens], np.int32)
    batch = {
        "inputs": row,
        "inputs_position": np.arange(len(tokens), dtype=np.int32)[None],
        "inputs_segmentation": np.ones_like(row),
        "token_types": np.zeros_like(row),
        "targets_position": np.array([positions], np.int32),
    }
    return np.asarray(compiled(config)(params, batch))[0]


@functools.cache
def compiled(config: Config) -> Any:
    model = build_model(config.model)
    return jax.jit(lambda params, batch: forward(model, params, batch, None).logits)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_logits_of_several_texts_are_those_of_each(causal, masked):
    for folder, ids_of in (
        (causal, lambda tokenizer, text: tokenizer.encode_batch([text])[0].tolist()),
        (masked, lambda tokenizer, text: [tokenizer.cls_id, *tokenizer.encode_batch([text])[0].tolist(), tokenizer.sep_id]),
    ):
        model = mhsh.load(folder)
        found = model.logits(TEXTS)
        assert found.real.shape == found.logits.shape[:2] and found.logits.shape[2] == model.config.model.vocab_size
        for text, logits, real in zip(TEXTS, *found, strict=True):
            tokens = ids_of(model.tokenizer, text)
            assert real.tolist() == [True] * len(tokens) + [False] * (found.real.shape[1] - len(tokens))
            wanted = plain(model.config, model.params, tokens, list(range(len(tokens))))
            np.testing.assert_allclose(logits[real], wanted, atol=1e-5 * np.abs(wanted).max(), rtol=0)


def test_a_loss_is_nats_a_token(causal, masked, translating):
    model = mhsh.load(causal)
    tokens = model.tokenizer.encode_batch([TEXTS[0]])[0].tolist()
    nats = -log_softmax(plain(model.config, model.params, tokens, []))
    assert model.loss(TEXTS[0]) == pytest.approx(np.mean([nats[at, tokens[at + 1]] for at in range(len(tokens) - 1)]), rel=1e-5)

    model = mhsh.load(masked)
    (tokens,) = (each.tolist() for each in model.encode(TEXTS[0]))
    of_each = []
    for at in range(1, len(tokens) - 1):
        if not model.tokenizer.is_special[tokens[at]]:
            hidden = tokens[:at] + [model.tokenizer.mask_id] + tokens[at + 1 :]
            of_each.append(-log_softmax(plain(model.config, model.params, hidden, [at]))[0, tokens[at]])
    assert len(of_each) > 3 and model.loss(TEXTS[0]) == pytest.approx(np.mean(of_each), rel=1e-5)

    model = mhsh.load(translating)
    source, target = ([*ids.tolist(), EOS_ID] for ids in model.tokenizer.encode_batch(["the of in", "der und"]))
    batch = {}
    for side, ids in (("inputs", source), ("targets", target)):
        batch |= {side: np.array([ids], np.int32), f"{side}_segmentation": np.ones((1, len(ids)), np.int32)}
        batch[f"{side}_position"] = np.arange(len(ids), dtype=np.int32)[None]
    batch["decoder_inputs"] = np.array([[BOS_ID, *target[:-1]]], np.int32)
    logits = np.asarray(compiled(model.config)(model.params, batch))[0]
    found = model.logits(["the of in", "und"], ["der und", "of"])
    np.testing.assert_allclose(found.logits[0, : len(target)], logits, atol=1e-5 * np.abs(logits).max(), rtol=0)
    wanted = -log_softmax(logits)[range(len(target)), target].mean()
    assert model.loss("the of in", "der und") == pytest.approx(wanted, rel=1e-5)


def test_a_mask_is_filled_by_the_softmax_there(masked):
    model = mhsh.load(masked)
    text = "the [MASK] goes[MASK]."
    (tokens,) = model.encode(text)
    places = np.flatnonzero(tokens == model.tokenizer.mask_id).tolist()
    shares = np.exp(log_softmax(plain(model.config, model.params, tokens.tolist(), places)))
    ordinary = np.flatnonzero(~model.tokenizer.is_special)
    found = model.fill(text, top=4)
    assert len(found) == len(places) == 2
    for candidates, row in zip(found, shares, strict=True):
        best = sorted(ordinary.tolist(), key=lambda number: -row[number])[:4]
        assert [each.token for each in candidates] == [model.tokenizer.vocab[number] for number in best]
        np.testing.assert_allclose([each.probability for each in candidates], row[best], rtol=1e-4)


def test_generation_is_greedy_at_zero_and_keeps_to_its_limits(causal):
    model = mhsh.load(causal)
    text = model.tokenizer.encode_batch(["The"])[0].tolist()
    for _ in range(4):  # by full passes
        logits = plain(model.config, model.params, text, [])[-1][: model.tokenizer.vocab_size].copy()
        logits[[0, 1, 2, 4]] = -np.inf  # no specials but the end of a document
        if logits.argmax() == model.tokenizer.sep_id:
            break
        text.append(int(logits.argmax()))
    assert model.generate("The", max_tokens=4, temperature=0.0) == model.tokenizer.decode(text)
    long = model.generate(["The", "", "x" * 47], max_tokens=500, temperature=3.0, seed=5)
    assert [len(model.tokenizer.encode_batch([each])[0]) >= size for each, size in zip(long, (3, 0, 47), strict=True)] == [True] * 3
    assert long == model.generate(["The", "", "x" * 47], max_tokens=2**40, temperature=3.0, seed=5)
    assert long[0] == model.generate("The", max_tokens=500, temperature=3.0, seed=5)
    assert long[0] != model.generate("The", max_tokens=500, temperature=3.0, seed=6)


def test_a_prompt_without_a_token_begins_a_document(saved):
    """As one of white space is for WordPiece: the mark that the model then reads is no text."""
    config = small_bert.small_config(objective="clm", next_sentence=False, num_heads=2, vocab_size=32, embed_dim=16)
    model = mhsh.load(saved(config, small_bert.small_tokenizer(), small_bert.trained_params(config.model)))
    begun, *others = model.generate(["", " ", "\u200b"], max_tokens=4, temperature=0.0)
    assert begun and others == [begun] * 2


def test_a_model_that_diverged_writes_nothing(causal, masked):
    """Its likeliest token would be the first of the vocabulary, over and over."""
    models = []
    for folder in (causal, masked):
        loaded = _loaded(folder)
        token = loaded.params["embeddings"]["token"] * np.nan
        models.append(
            dataclasses.replace(loaded, params=loaded.params | {"embeddings": loaded.params["embeddings"] | {"token": token}})
        )
    for options in ({"temperature": 0.0}, {"top_k": 2}):
        with pytest.raises(UserError, match="probabilities are not finite at prompt 1: its run diverged; try an earlier --step"):
            models[0].generate(["The", ""], max_tokens=3, **options)
    with pytest.raises(UserError, match="probabilities are not finite at mask 1"):
        models[1].fill("the [MASK] of [MASK]")


def test_translations_are_those_of_the_command(translating):
    model, lines = mhsh.load(translating), ["the in a", "der und die", ""]
    decode = model_decoder(model.model, model.params, num_hypotheses=2, length_penalty=0.6)
    limit = small_translation.MAX_POSITIONS
    wanted = translate_lines(lines, model.tokenizer, decode, max_positions=limit, batch_tokens=4096, cut_overlong=False).lines
    assert model.translate(lines, beam=2) == wanted
    assert model.translate(lines[0], beam=2) == wanted[0]


def test_a_step_and_an_average(causal):
    first, second = (mhsh.load(causal, step=step) for step in (1, 2))
    mean = jax.tree.map(lambda a, b: (a + b) / 2, first.params, second.params)
    tokens = [10, 20, 30]
    text = first.tokenizer.decode(tokens)
    found = mhsh.load(causal, average=2).logits(text).logits[0]
    np.testing.assert_allclose(found, plain(first.config, mean, tokens, []), atol=1e-4, rtol=0)
    assert np.abs(found - second.logits(text).logits[0]).max() > 1e-2


@functools.cache
def _loaded(folder: str) -> Any:
    return mhsh.load(folder)


WRONG: list[tuple[str, Callable[[Any], Any], str]] = [
    ("causal", lambda model: model.fill("a [MASK]"), "which does not fill; generate, logits and loss are there"),
    ("causal", lambda model: model.logits("a", "b"), "only a model of 'translation' takes a second text"),
    ("causal", lambda model: model.logits(["a", "b" * 49]), "text 2 has 49 tokens, more than model.max_positions = 48"),
    ("causal", lambda model: inspect.unwrap(type(model).loss)(model, ["a b", "a b c"]), "loss is of one text, and it was given"),
    ("causal", lambda model: model.loss("a"), "the text has 1 token; a causal model predicts each but the first"),
    ("causal", lambda model: model.generate("b" * 48), "prompt 1 has 48 tokens, and model.max_positions = 48 leaves no room"),
    ("causal", lambda model: model.generate("a", max_tokens=0), "max_tokens = 0; allowed: 1 or more"),
    ("causal", lambda model: model.generate("a", temperature=-0.5), "temperature = -0.5; allowed: 0 or more"),
    ("masked", lambda model: model.fill("the number"), "the text has no [MASK]"),
    ("masked", lambda model: model.fill("[MASK]", top=0), "top = 0; allowed: 1 or more"),
    ("masked", lambda model: model.loss("xyz"), "the text has no token that could be masked"),
    ("translating", lambda model: model.logits("the"), "give the translation too"),
    ("translating", lambda model: model.logits(["the", "a"], ["der"]), "there are 2 texts and 1 targets; give one for each"),
    ("translating", lambda model: model.translate("the", beam=0), "beam = 0; allowed: 1 or more"),
    ("translating", lambda model: model.translate("der " * 40), "line 1 has 41 tokens with its end mark"),
    ("causal", lambda model: mhsh.load(model.folder, step=9), "holds no checkpoint of step 9; there are 1, 2"),
    ("causal", lambda model: mhsh.load(model.folder, mesh={"tensor": 16}), "mesh = {'tensor': 16} takes 16 devices"),
    ("causal", lambda model: mhsh.load(model.folder, mesh={"tensor": -1}), "mesh = {'tensor': -1}; allowed: how many devices"),
    ("causal", lambda model: mhsh.load(model.folder, mesh={"fsdp": 3}), "model.embed_dim = 16 is not divisible by mesh.fsdp = 3"),
    ("causal", lambda model: mhsh.load(str(Path(model.folder) / "none")), "holds no run: config.json is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call", "message"), WRONG, ids=[f"{kind}-{message[:40]}" for kind, _, message in WRONG])
def test_one_line_says_what_is_wrong(kind, call, message, request):
    model = _loaded(request.getfixturevalue(kind))
    with pytest.raises(UserError) as caught:
        call(model)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_commands_print_the_same(causal, masked, capsys):
    from mhsh.cli.main import main

    assert main(["predict", causal, "--text=The", "--max-tokens=5", "--seed=3", "--top-k=9"]) == 0
    assert capsys.readouterr().out == _loaded(causal).generate("The", max_tokens=5, seed=3, top_k=9) + "\n"
    assert main(["predict", masked, "--text=the [MASK] of [MASK]", "--top=2"]) == 0
    blocks = [block.split("\n") for block in capsys.readouterr().out.rstrip().split("\n\n")]
    wanted = _loaded(masked).fill("the [MASK] of [MASK]", top=2)
    assert blocks == [[f"{each.probability:.4f}  {each.token}" for each in candidates] for candidates in wanted]


def test_importing_mhsh_loads_no_jax_and_every_name_is_there():
    code = "import mhsh, sys; assert 'jax' not in sys.modules; mhsh.configs.get('bert:2l8h'); assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert all(getattr(mhsh, name) is not None for name in mhsh.__all__)
    with pytest.raises(AttributeError, match="module 'mhsh' has no attribute 'lode'"):
        _ = mhsh.lode  # pyrefly: ignore[missing-attribute]


HALF = "[MASK]\ud83d"  # of a surrogate pair, which no tokenizer can hold
WORDS = {"text": "the [MASK]", "prompt": "the", "target": "die", "targets": "die", "texts": "the", "lines": ["the"]}


def test_what_is_no_text_is_refused_at_every_door(causal, masked, translating):
    """Every method with a text: by itself, in a list, and beside others that are fine."""
    refused: dict[tuple[str, str], bool] = {}
    for model in map(mhsh.load, (causal, masked, translating)):
        is_translating = model.config.model.objective == "translation"
        for method, function in inspect.getmembers(type(model), inspect.isfunction):
            texts = [name for name in inspect.signature(function).parameters if name in WORDS]
            if method.startswith("_"):
                continue
            assert texts or method == "translate_lines", f"name the texts of {method} as those of the others, or in WORDS"
            given = {name: WORDS[name] for name in texts if is_translating or not name.startswith("target")}
            for name in given:
                broken = [HALF] if name == "lines" else HALF
                try:
                    getattr(model, method)(**given | {name: broken})
                except UserError as error:
                    key = (method, name)
                    refused[key] = refused.get(key, False) or "text 1 is not text: U+D83D at character 6 is half of a" in str(error)
                else:
                    pytest.fail(f"{method} takes {name} = {broken!r}")
    assert all(refused.values()) and len(refused) >= 9, refused
    with pytest.raises(UserError, match="text 2 is not text"):
        mhsh.load(causal).generate(["the", HALF])


@pytest.mark.parametrize(
    "name",
    [name for name in mhsh.__all__ if {"run", "workdir"} & {*getattr(inspect.unwrap(getattr(mhsh, name)), "__annotations__", {})}],
)
def test_what_is_no_text_names_no_run(name, tmp_path):
    arguments = {"run": HALF, "workdir": str(tmp_path / HALF), "config": causal_config()}
    taken = {one: arguments[one] for one in inspect.signature(getattr(mhsh, name)).parameters if one in arguments}
    with pytest.raises(UserError, match="the run folder's path is not text"):
        getattr(mhsh, name)(**taken)


def test_what_is_no_text_is_in_no_config():
    with pytest.raises(UserError, match=r"^data\.source is not text"):
        mhsh.configs.get("bert:2l8h", data={"source": f"text:{HALF}"})
