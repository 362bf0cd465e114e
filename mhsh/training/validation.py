"""Validation of parameters: the losses, and the metrics that the task is published with."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, PartitionSpec

from mhsh.config.schema import Config
from mhsh.data.batches import prefetch
from mhsh.data.corpus import Corpus
from mhsh.data.fine_tuning import ClassificationCorpus, SpanCorpus
from mhsh.data.translation import decoded_validation
from mhsh.evaluation.evaluate import classification_metrics, evaluate, evaluate_rows, span_metrics, translation_metrics
from mhsh.models.build import Model, build_model, xla_config
from mhsh.models.seq2seq import Seq2Seq
from mhsh.training.checkpoints.verify import checksums, hex_digits
from mhsh.training.sharding import ROWS, process_rows, put_batch, replicate_parameters
from mhsh.training.step import compile_eval_step, eval_step, predict_step


class ValidationResult(NamedTuple):
    """The result of an evaluation."""

    values: dict[str, float]
    loss_parts: list[float]  # see mhsh.evaluation.evaluate.Evaluation
    batches: str  # a checksum of all its batches in order, the same on any mesh: sixteen hexadecimal digits


class Validator:
    """The validation metrics of parameters of one model. It keeps what it has compiled and read."""

    def __init__(
        self,
        config: Config,
        model: Model,
        mesh: Mesh,
        corpus: Corpus,
        params: Any,
        *,
        compiling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        num_sentences: int | None = 0,
        num_hypotheses: int = 1,
        length_penalty: float = 0.0,
    ) -> None:
        """`params` may be abstract. The step is compiled in the context of `compiling()` when it is
        first needed. Of a translation model, `num_sentences` validation pairs are translated (None:
        all), by beam search.
        """
        self._model, self._mesh, self._corpus = model, mesh, corpus
        self._search = {"num_hypotheses": num_hypotheses, "length_penalty": length_penalty}
        per_row = isinstance(corpus, ClassificationCorpus | SpanCorpus)
        step, out_specs = (predict_step, (PartitionSpec(), ROWS)) if per_row else (eval_step, PartitionSpec())
        step = functools.partial(step, count=config.train.accumulation_steps)  # a whole batch may not fit
        self._compile = functools.partial(compile_eval_step, step, out_specs, config, model, mesh, params)
        self._compiling = compiling
        self._batches = corpus.validation_batches(config.train.batch_size, process_rows(mesh, config.train.batch_size))
        is_translation = config.model.objective == "translation"
        self._pairs = decoded_validation(corpus, num_sentences) if is_translation else []

    @functools.cached_property
    def _step(self) -> jax.stages.Compiled:
        with self._compiling():
            return self._compile()

    @property
    def num_batches(self) -> int:
        """The number of batches of all validation rows."""
        return len(self._batches)

    def __call__(self, params: Any, num_batches: int = 0, heartbeat: Callable[[], None] = lambda: None) -> ValidationResult:
        """The metrics over the first `num_batches` batches (0: all). `heartbeat` is called after
        each piece of work.
        """
        corpus, model = self._corpus, self._model
        digest = hashlib.sha256()
        batches = self._put(min(num_batches or self.num_batches, self.num_batches), digest, heartbeat)
        if isinstance(corpus, ClassificationCorpus | SpanCorpus):
            (values, parts), logits = evaluate_rows(self._step, params, batches, len(corpus.validation))
            values |= span_metrics(corpus, logits) if isinstance(corpus, SpanCorpus) else classification_metrics(corpus, logits)
        else:
            values, parts = evaluate(self._step, params, batches)
        if self._pairs:
            model = build_model(xla_config(model.config))  # decoding has no kernels
            assert isinstance(model, Seq2Seq)
            values |= translation_metrics(
                model, replicate_parameters(params, self._mesh, model.config), corpus.tokenizer, self._pairs, **self._search
            )
        heartbeat()
        return ValidationResult(values, parts, digest.hexdigest()[:16])

    def _put(self, num_batches: int, digest: Any, heartbeat: Callable[[], None]) -> Iterator[dict[str, jax.Array]]:
        """The batches on the devices. `digest`, a hash, takes the checksum of each."""
        for host_batch in prefetch(self._batches, 0, num_batches):
            heartbeat()
            batch = put_batch(host_batch, self._mesh)
            sums = checksums(batch)
            yield batch
            # Fetched when the step has run: the device need not wait.
            for _, of_array in sorted(jax.device_get(sums).items()):
                digest.update(hex_digits(of_array).encode())
