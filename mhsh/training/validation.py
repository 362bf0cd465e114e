"""Validation of parameters: the losses, and the metrics that the task is published with."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, PartitionSpec

from mhsh.config.schema import Config
from mhsh.data.batches import prefetched
from mhsh.data.corpus import Corpus
from mhsh.data.fine_tuning import ClassificationCorpus, SpanCorpus
from mhsh.data.translation import decoded_validation
from mhsh.evaluation.validation import classification_metrics, evaluate, evaluate_rows, span_metrics, translation_metrics
from mhsh.models.build import Model
from mhsh.models.seq2seq import Seq2Seq
from mhsh.training.checkpoints.verify import as_hex, checksums
from mhsh.training.sharding import ROWS, put_batch, whole
from mhsh.training.step import compile_eval_step, compiled_by_length, eval_step, predict_step


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How validation pairs are translated. Only the translation objective reads it."""

    num_sentences: int | None  # None: all
    num_hypotheses: int
    length_penalty: float


class Validated(NamedTuple):
    """What an evaluation found."""

    values: dict[str, float]
    loss_parts: list[float]  # see mhsh.evaluation.validation.Evaluated
    batches: str  # a checksum of all its batches in order, the same on any mesh: sixteen hexadecimal digits


class Validator:
    """The validation metrics of parameters of one model. It keeps what it has compiled and read."""

    def __init__(
        self,
        config: Config,
        model: Model,
        mesh: Mesh,
        corpus: Corpus,
        rows: slice,
        params: Any,
        decoding: Decoding,
        compiling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`rows` are those of a batch that this process makes. `params` may be abstract. For
        `compiling` see compiled_by_length.
        """
        self._model, self._mesh, self._corpus, self._decoding = model, mesh, corpus, decoding
        per_row = isinstance(corpus, ClassificationCorpus | SpanCorpus)
        step, out_specs = (predict_step, (PartitionSpec(), ROWS)) if per_row else (eval_step, PartitionSpec())
        compiled = compiled_by_length(
            lambda length: compile_eval_step(step, out_specs, config, model, mesh, params, length), compiling
        )
        self._step = lambda params, batch: compiled(batch)(params, batch)
        self._batches = corpus.validation_batches(config.train.batch_size, rows)
        is_translation = config.model.objective == "translation"
        self._pairs = decoded_validation(corpus, decoding.num_sentences) if is_translation else []

    @property
    def num_batches(self) -> int:
        """The number of batches of all validation rows."""
        return len(self._batches)

    def __call__(self, params: Any, num_batches: int = 0, heartbeat: Callable[[], None] = lambda: None) -> Validated:
        """The metrics over the first `num_batches` batches (0: all). `heartbeat` is called after
        each piece of work.
        """
        corpus, model = self._corpus, self._model
        seen = hashlib.sha256()
        batches = self._put(min(num_batches or self.num_batches, self.num_batches), seen, heartbeat)
        if isinstance(corpus, ClassificationCorpus | SpanCorpus):
            (values, parts), logits = evaluate_rows(self._step, params, batches, len(corpus.validation))
            values |= span_metrics(corpus, logits) if isinstance(corpus, SpanCorpus) else classification_metrics(corpus, logits)
        else:
            values, parts = evaluate(self._step, params, batches)
        if self._pairs:
            assert isinstance(model, Seq2Seq)
            values |= translation_metrics(
                model,
                whole(params, self._mesh),
                corpus.tokenizer,
                self._pairs,
                num_hypotheses=self._decoding.num_hypotheses,
                length_penalty=self._decoding.length_penalty,
            )
        heartbeat()
        return Validated(values, parts, seen.hexdigest()[:16])

    def _put(self, num_batches: int, seen: Any, heartbeat: Callable[[], None]) -> Iterator[dict[str, jax.Array]]:
        """The batches on the devices. `seen`, a hash, takes the checksum of each."""
        for host_batch in prefetched(self._batches, 0, num_batches):
            heartbeat()
            batch = put_batch(host_batch, self._mesh)
            sums = checksums(batch)
            yield batch
            # Fetched when the step has run: the device need not wait.
            for _, of_array in sorted(jax.device_get(sums).items()):
                seen.update(as_hex(of_array).encode())
