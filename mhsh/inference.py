"""A trained model: its logits, its loss, and what it writes.

model = load("runs/24l1h_admin")
model.generate("Once", max_tokens=50, temperature=0.8, seed=0)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import linen as nn
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int32
from scipy.special import softmax

from mhsh.config.schema import Config, ModelConfig
from mhsh.data.load import load_tokenizer
from mhsh.data.pairs import clean_text
from mhsh.data.subword import BOS_ID, EOS_ID, SubwordTokenizer
from mhsh.data.wordpiece import MASK, Tokenizer
from mhsh.errors import NotFinite, UserError
from mhsh.evaluation.translation import Sentence, Translations, model_decoder, padded_length, source_batch, translate_lines
from mhsh.models.bert import Bert
from mhsh.models.build import Model, build_model, forward
from mhsh.models.generation import Sampling, generate
from mhsh.models.losses import compute_metrics
from mhsh.models.seq2seq import Seq2Seq
from mhsh.models.types import Outputs
from mhsh.prompts import check_masks, check_values, list_texts
from mhsh.storage.run_folder import RunFolder
from mhsh.training.checkpoints.restore import inference_mesh, load_for_inference
from mhsh.training.memory import replace_policy
from mhsh.training.sharding import ROWS, axis_rules, put_batch, replicate_parameters
from mhsh.training.shards import map_shards

# What only the models of one objective do.
_METHODS = {"clm": "generate", "mlm": "fill", "translation": "translate"}
_MASKED_AT_ONCE = 64  # rows, of a masked model's loss

Tokens = Int32[np.ndarray, " _"]
Texts = TypeVar("Texts", str, list[str])  # a text is answered by a text, several by as many


class Logits(NamedTuple):
    """The logits of every position, and which positions are real."""

    logits: Float[np.ndarray, "B T V"]
    real: Bool[np.ndarray, "B T"]  # False at padding


class TokenProbability(NamedTuple):
    """A token for a mask."""

    token: str
    probability: float


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
    """A run's model, parameters and vocabulary; `load` makes it.

    A text has at most model.max_positions tokens. Texts are padded to a few lengths, and what is
    computed for a length is compiled once.
    """

    folder: str
    config: Config = dataclasses.field(repr=False)
    tokenizer: Tokenizer | SubwordTokenizer = dataclasses.field(repr=False)
    model: Model = dataclasses.field(repr=False)
    params: Any = dataclasses.field(repr=False)
    mesh: Mesh = dataclasses.field(repr=False)

    def encode(self, texts: str | Sequence[str]) -> list[Tokens]:
        """The ids of each text as the model reads it.

        mlm: [CLS] text [SEP], where [MASK] in a text is the mask. clm: the text alone, as training
        reads one stream in which [SEP] ends each document. translation: the text and its end mark.
        Raises UserError where a text has no token, or more than the model has positions.
        """
        texts, tokenizer = list_texts(texts), self.tokenizer
        if isinstance(tokenizer, SubwordTokenizer):
            ids = tokenizer.encode_batch([clean_text(text) for text in texts])
            ended = [np.append(tokens, np.int32(EOS_ID)) for tokens in ids]
        elif self._objective == "mlm":
            ids = [_encode_with_masks(tokenizer, text) for text in texts]
            ended = [np.concatenate([[tokenizer.cls_id], tokens, [tokenizer.sep_id]]).astype(np.int32) for tokens in ids]
        else:
            ids = ended = tokenizer.encode_batch(texts)
        limit = self.config.model.max_positions
        for number, (text, tokens) in enumerate(zip(ids, ended, strict=True), 1):
            if not len(text):
                raise UserError(f"text {number} has no token; give a text of one at least")
            if len(tokens) > limit:
                raise UserError(f"text {number} has {len(tokens)} tokens, more than model.max_positions = {limit}; shorten it")
        return ended

    def logits(self, texts: str | Sequence[str], targets: str | Sequence[str] | None = None) -> Logits:
        """The logits [B,T,V] at the T tokens of the longest text, and which are real [B,T].

        clm: of the next token. mlm: of the token itself. translation: of the T tokens of `targets`,
        which has one target per text, given the text and the tokens before; T counts the end mark.
        Raises UserError where `targets` are missing, or given for another kind of model, or
        `encode` refuses a text.
        """
        batch, longest = self._batch(texts, targets)
        logits = self._compute(_forward(self.model.config), batch)
        real = batch["targets_segmentation" if targets is not None else "inputs_segmentation"] > 0
        rows = len(list_texts(texts))
        return Logits(logits[:rows, :longest], real[:rows, :longest])

    def loss(self, text: str, target: str | None = None) -> float:
        """Nats per token.

        clm: of every token but the first, given those before. translation: of the tokens of
        `target`, given `text`. Both are computed as in validation. mlm: of every token while it
        alone is masked, the pseudo log-likelihood of Salazar et al. 2020 (arXiv 1910.14659).
        Validation masks many drawn tokens at once, which is harder. Raises UserError where there is
        no token to predict, several texts are given, or `logits` refuses the texts.
        """
        if not isinstance(text, str) or not isinstance(target, str | None):
            raise UserError("loss is of one text, and it was given several; call it with each")
        if self._objective == "mlm":
            self._check_targets(target)
            return self._masked_loss(text)
        batch, longest = self._batch(text, target)
        logits = self._compute(_forward(self.model.config), batch)[:1, :longest]
        if self._objective == "clm":
            logits, targets = logits[:, :-1], batch["inputs"][:1, 1:longest]
        else:
            targets = batch["targets"][:1, :longest]
        if not targets.size:
            raise UserError(f"the text has {longest} token; a causal model predicts each but the first: give two or more")
        return _nats(logits, targets) / targets.size

    def generate(self, prompt: Texts, *, max_tokens: int = 50, temperature: float = 0.8, top_k: int = 0, seed: int = 0) -> Texts:
        """The prompt and up to `max_tokens` tokens that a causal model writes after it; a list for
        several prompts. A prompt without a token begins a document.

        The text ends with the document, or at model.max_positions. Equal seeds give equal texts,
        whatever other prompts follow in the list.

        Args:
          temperature: of the softmax that tokens are drawn from; 0 takes the likeliest.
          top_k: draw from the `top_k` likeliest tokens (0: from all).

        Raises UserError where the model is not causal, a value is not allowed, or a prompt fills
        the model's positions, or its probabilities are not finite.
        """
        self._check_method("generate")
        check_values(max_tokens=max_tokens, temperature=temperature, top_k=top_k, seed=seed)
        tokenizer = self.tokenizer
        assert isinstance(tokenizer, Tokenizer)
        limit, vocabulary = self.config.model.max_positions, self.config.model.vocab_size
        texts = list_texts(prompt)
        given = tokenizer.encode_batch(texts)  # of white space alone WordPiece makes no token
        # [SEP] ends the document before.
        prompts = [ids if len(ids) else np.array([tokenizer.sep_id], np.int32) for ids in given]
        for number, ids in enumerate(prompts, 1):
            if len(ids) >= limit:
                raise UserError(
                    f"prompt {number} has {len(ids)} tokens, and model.max_positions = {limit} leaves no room after it; shorten it"
                )
        batch, _ = self._rows(prompts)
        rows = len(batch["inputs"])
        lengths, limits = np.ones(rows, np.int32), np.zeros(rows, np.int32)
        lengths[: len(prompts)] = [len(ids) for ids in prompts]
        limits[: len(prompts)] = np.minimum(min(max_tokens, limit), limit - lengths[: len(prompts)])
        batch = {"inputs": batch["inputs"], "lengths": lengths, "limits": limits, "row": np.arange(rows, dtype=np.int32)}
        allowed = np.zeros(vocabulary, bool)
        allowed[: tokenizer.vocab_size] = ~tokenizer.is_special
        allowed[tokenizer.sep_id] = True
        sampling = Sampling(jnp.float32(temperature), jax.random.key(seed), jnp.asarray(allowed))
        write = _generator(self.model.config, padded_length(max_tokens, limit), tokenizer.sep_id, min(top_k, vocabulary))
        written = self._compute(write, batch, sampling)
        broken = np.flatnonzero((written.tokens < 0).any(axis=1))
        if broken.size:
            raise NotFinite(f"prompt {broken[0] + 1}")
        whole_texts = [
            tokenizer.decode([*ids.tolist(), *tokens[:count].tolist()])
            for ids, tokens, count in zip(given, written.tokens, written.lengths, strict=False)
        ]
        return _match_input(prompt, whole_texts)

    def fill(self, text: str, *, top: int = 5) -> list[list[TokenProbability]]:
        """The `top` likeliest tokens for every [MASK] of the text, the likeliest first.

        The probabilities are over the whole vocabulary; special tokens are left out. Raises
        UserError where the model is not masked, the text has no [MASK], `encode` refuses it, or a
        probability is not finite.
        """
        self._check_method("fill")
        check_values(top=top)
        tokenizer = self.tokenizer
        assert isinstance(tokenizer, Tokenizer)
        check_masks(text)
        (ids,) = self.encode(text)
        masks = np.flatnonzero(ids == tokenizer.mask_id)
        probabilities = softmax(self.logits(text).logits[0, masks].astype(np.float64), axis=-1)
        if not np.isfinite(probabilities).all():
            raise NotFinite(f"mask {np.flatnonzero(~np.isfinite(probabilities).all(axis=1))[0] + 1}")
        ordinary = tokenizer.ordinary_ids
        best = [(row, ordinary[np.argsort(-row[ordinary], kind="stable")[:top]].tolist()) for row in probabilities]
        return [[TokenProbability(tokenizer.decode([number]), float(row[number])) for number in numbers] for row, numbers in best]

    def translate(self, texts: Texts, *, beam: int = 4, length_penalty: float = 0.6) -> Texts:
        """The translations of the texts, by beam search with `beam` hypotheses, which are scored by
        log-probability / length ** `length_penalty`. Raises UserError where the model does not
        translate, a value is not allowed, or a text is too long.
        """
        lines = self.translate_lines(list_texts(texts), beam=beam, length_penalty=length_penalty).lines
        return _match_input(texts, lines)

    def translate_lines(
        self,
        lines: Sequence[str],
        *,
        beam: int = 4,
        length_penalty: float = 0.6,
        batch_tokens: int = 4096,
        cut_overlong: bool = False,
    ) -> Translations:
        """The translations of many lines: see `mhsh.evaluation.translation.translate_lines`."""
        self._check_method("translate")
        check_values(beam=beam, length_penalty=length_penalty, batch_tokens=batch_tokens)
        assert isinstance(self.model, Seq2Seq) and isinstance(self.tokenizer, SubwordTokenizer)
        return translate_lines(
            list_texts(lines) if lines else [],
            self.tokenizer,
            model_decoder(self.model, self._whole_params, num_hypotheses=beam, length_penalty=length_penalty),
            max_positions=self.config.model.max_positions,
            batch_tokens=batch_tokens,
            cut_overlong=cut_overlong,
        )

    @property
    def _objective(self) -> str:
        return self.config.model.objective

    @functools.cached_property
    def _whole_params(self) -> Any:
        return replicate_parameters(self.params, self.mesh, self.config.model)

    def _check_method(self, method: str) -> None:
        if _METHODS[self._objective] != method:
            others = f"{_METHODS[self._objective]}, logits and loss are there"
            raise UserError(f"{self.folder} is a run of model.objective = {self._objective!r}, which does not {method}; {others}")

    def _check_targets(self, targets: object) -> None:
        if (targets is not None) != (self._objective == "translation"):
            what = "give the translation too" if targets is None else "only a model of 'translation' takes a second text"
            raise UserError(f"{self.folder} is a run of model.objective = {self._objective!r}: {what}")

    def _batch(self, texts: str | Sequence[str], targets: str | Sequence[str] | None) -> tuple[dict[str, np.ndarray], int]:
        """The batch of `forward` for texts, and the length of the longest text or target."""
        self._check_targets(targets)
        batch, longest = self._rows(self.encode(texts))
        if self._objective == "mlm":
            rows, length = batch["inputs"].shape
            batch["targets_position"] = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
        if targets is None:
            return batch, longest
        if len(list_texts(targets)) != len(list_texts(texts)):
            raise UserError(f"there are {len(list_texts(texts))} texts and {len(list_texts(targets))} targets; give one for each")
        encoded = self.encode(targets)
        side, longest = self._rows(encoded)
        shifted, _ = self._rows([np.append(np.int32(BOS_ID), tokens[:-1]) for tokens in encoded])
        return batch | {key.replace("inputs", "targets"): value for key, value in side.items()} | {
            "decoder_inputs": shifted["inputs"]
        }, longest

    def _rows(self, encoded: Sequence[Tokens]) -> tuple[dict[str, np.ndarray], int]:
        """The texts as rows of one of a few lengths, and the length of the longest. There are rows
        of padding, so that few numbers of rows are compiled too.
        """
        model, shards = self.config.model, self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        longest = max(map(len, encoded))
        rows = -(-(1 << (len(encoded) - 1).bit_length()) // shards) * shards
        members = [Sentence(row, tokens) for row, tokens in enumerate(encoded)]
        batch = source_batch(members, rows, padded_length(longest, model.max_positions))
        if model.num_token_types:
            batch["token_types"] = np.zeros_like(batch["inputs"])
        return batch, longest

    def _compute(self, function: Callable[..., Any], batch: dict[str, np.ndarray], *replicated: Any) -> Any:
        """The rows that `function` returns for a batch, on this machine."""
        with jax.set_mesh(self.mesh), nn.logical_axis_rules(axis_rules(self.config.model)):
            return jax.device_get(function(self.params, put_batch(batch, self.mesh), *replicated))

    def _masked_loss(self, text: str) -> float:
        tokenizer = self.tokenizer
        assert isinstance(tokenizer, Tokenizer)
        (ids,) = self.encode(text)
        positions = np.flatnonzero(~tokenizer.is_special[ids])
        if not len(positions):
            raise UserError("the text has no token that could be masked; give some words of the vocabulary")
        nats = 0.0
        for start in range(0, len(positions), _MASKED_AT_ONCE):
            masked = positions[start : start + _MASKED_AT_ONCE]
            rows = np.tile(ids, (len(masked), 1))
            rows[np.arange(len(masked)), masked] = tokenizer.mask_id
            batch, _ = self._rows(list(rows))
            batch["targets_position"] = np.zeros((len(batch["inputs"]), 1), np.int32)
            batch["targets_position"][: len(masked), 0] = masked
            nats += _nats(self._compute(_forward(self.model.config), batch)[: len(masked)], ids[masked][:, None])
        return nats / len(positions)


def load(run: epath.PathLike, *, step: int | None = None, average: int = 1, mesh: Mapping[str, int] | None = None) -> LoadedModel:
    """The model of a run folder, local or in a bucket (gs://). Its data is not read.

    Args:
      step: which checkpoint (None: the newest).
      average: the mean of that many checkpoints, up to `step`.
      mesh: devices on the axes data, fsdp and tensor, such as {"tensor": 2}; one device if not
        given. The run may have been trained on any other mesh.

    Raises UserError where it is not a run that was pre-trained or translates, it has no such
    checkpoint, or the devices do not fit.
    """
    folder = RunFolder(run)
    config = replace_policy(folder.read_config(), "none")  # the weights are gathered once
    if (objective := config.model.objective) not in _METHODS:
        raise UserError(f"{folder.path} is a run of model.objective = {objective!r}, for a task's examples: see mhsh predict")
    tokenizer = load_tokenizer(folder, config)
    device_mesh = inference_mesh(config, mesh or {})
    model, params = load_for_inference(folder, config, step, average, device_mesh)
    return LoadedModel(str(folder.path), config, tokenizer, model, params, device_mesh)


def _match_input(texts: Texts, answers: list[str]) -> Texts:
    return cast(Texts, answers[0] if isinstance(texts, str) else answers)


def _encode_with_masks(tokenizer: Tokenizer, text: str) -> Tokens:
    """The ids of the text, in which [MASK] is the mask."""
    first, *others = tokenizer.encode_batch(text.split(MASK))
    return np.concatenate([first, *(part for ids in others for part in ([tokenizer.mask_id], ids))]).astype(np.int32)


def _nats(logits: np.ndarray, targets: np.ndarray) -> float:
    """-log p of all targets, as validation computes it."""
    weights = np.ones(targets.shape, np.float32)
    return float(compute_metrics(Outputs(jnp.asarray(logits), None), {"targets": targets, "weights": weights})["target_loss"].sum)


@functools.cache
def _forward(config: ModelConfig) -> Callable[..., Any]:
    """Parameters and a batch to logits, on the mesh that is set."""
    model = build_model(config)
    return jax.jit(map_shards(lambda params, batch: forward(model, params, batch, None).logits, config, ROWS))


@functools.cache
def _generator(config: ModelConfig, room: int, end: int, top_k: int) -> Callable[..., Any]:
    """`generate`, on the mesh that is set."""
    model = build_model(config)
    assert isinstance(model, Bert), "the objective is clm"
    return jax.jit(map_shards(functools.partial(generate, model, room=room, end=end, top_k=top_k), config, ROWS))
