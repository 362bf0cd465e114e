"""mhsh bench decode: tokens a second of a translation model's beam search, or of a causal model
after prompts. Models have random weights.

A translation model has two settings:

batch: one batch of sentences of one length, all decoded for the same number of steps (the end mark
  is suppressed).
file: sentences of many lengths (log-normal, 8 to 60 tokens, drawn once), each translated to as many
  tokens as it has itself, in the batches that `mhsh predict` makes. A batch runs until its last
  sentence is finished; only the tokens of the sentences themselves count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mhsh.bench.results import BenchResults
from mhsh.bench.steps import candidate_fields, fresh_model
from mhsh.bench.timing import CONFIG, Candidate, Note, Schedule, bench
from mhsh.config.schema import Config
from mhsh.data.subword import BOS_ID, EOS_ID, PAD_ID
from mhsh.errors import UserError
from mhsh.evaluation.translation import Decoder, Sentence, length_limit, model_decoder, sentence_batches, source_batch
from mhsh.models.bert import Bert
from mhsh.models.generation import Sampling, generate
from mhsh.models.seq2seq import Seq2Seq

HYPOTHESES, LENGTH_PENALTY = 4, 0.6  # the defaults of `mhsh predict`
BATCH_TOKENS = 4096  # likewise
SHORTEST, LONGEST = 8, 60  # tokens of the file's sentences


class Workload(NamedTuple):
    """The input of decoding: sentences with their end marks, or prompts."""

    setting: Mapping[str, int | str]
    sources: Sequence[np.ndarray]
    lengths: Sequence[int]  # tokens to write for each
    marks: Sequence[int] = ()  # tokens that none of them may be


# The tokens that a model writes for each source.
Write = Callable[[Workload], Sequence[np.ndarray]]


class Amounts(NamedTuple):
    """The amounts to decode."""

    sentences: int  # or prompts
    source_tokens: int  # of each of them, a sentence's end mark included
    steps: int  # tokens that follow
    file_sentences: int  # of the setting `file` of a translation model


def decode(configs: Mapping[str, Config], amounts: Amounts, rounds: int, note: Note) -> BenchResults:
    """Times decoding with `configs`, by name. Raises UserError where the configs are neither causal
    nor translation models, or have too few positions.
    """
    settings = workloads(configs, amounts)
    note("making the models")
    writers = {name: writer(config) for name, config in configs.items()}
    cells = [
        (work.setting, [candidate(writers[name], work, **candidate_fields(name, configs[name], 1)) for name in configs])
        for work in settings
    ]
    return decoding_results(configs, cells, amounts, rounds, note)


def decoding_results(
    configs: Mapping[str, Config],
    cells: Sequence[tuple[Mapping[str, int | str], Sequence[Candidate]]],
    amounts: Amounts,
    rounds: int,
    note: Note,
) -> BenchResults:
    """Times the candidates of every workload."""
    sentences, source_tokens, steps, _ = amounts
    if is_causal(configs):
        unit, options = "token", {"prompts": sentences, "prompt_tokens": source_tokens, "steps": steps}
    else:
        unit, options = "target token", amounts._asdict() | {"beam": HYPOTHESES, "length_penalty": LENGTH_PENALTY}
    return bench("decode", unit, configs, cells, Schedule(rounds), note, **options)


def is_causal(configs: Mapping[str, Config]) -> bool:
    """Whether the first config writes on from prompts; else it translates."""
    return configs[CONFIG].model.objective == "clm"


def workloads(configs: Mapping[str, Config], amounts: Amounts) -> list[Workload]:
    """The settings, with random tokens that all models know; raises as `decode`."""
    sentences, source_tokens, steps, file_sentences = amounts
    longest = source_tokens + steps if is_causal(configs) else max(source_tokens, steps, LONGEST)
    for config in configs.values():
        _check(config.model.objective, is_causal(configs), longest, config.model.max_positions)
    generator = np.random.default_rng(0)
    vocabulary = min(config.model.vocab_size for config in configs.values())
    if is_causal(configs):
        prompts = generator.integers(0, vocabulary, (sentences, source_tokens)).astype(np.int32)
        setting = {"prompts": sentences, "prompt_tokens": source_tokens, "tokens": sentences * steps}
        return [Workload(setting, list(prompts), [steps] * sentences)]
    drawn = np.clip(np.rint(generator.lognormal(3.1, 0.5, file_sentences)), SHORTEST, LONGEST).astype(int).tolist()
    settings = {"batch": ([source_tokens] * sentences, [steps] * sentences), "file": (drawn, drawn)}
    return [
        Workload(
            {"setting": name, "sentences": len(targets), "tokens": sum(targets)},
            [np.append(generator.integers(EOS_ID + 1, vocabulary, n - 1), EOS_ID).astype(np.int32) for n in sources],
            targets,
            marks=(PAD_ID, EOS_ID),
        )
        for name, (sources, targets) in settings.items()
    ]


def _check(objective: str, causal: bool, longest: int, positions: int) -> None:
    if causal and objective != "clm":
        raise UserError(f"mhsh bench decode: model.objective = {objective!r} beside 'clm'; give two causal models")
    if not causal and objective != "translation":
        raise UserError(f"mhsh bench decode: model.objective = {objective!r} writes no text; give translation:NAME or gpt:NAME")
    if longest > positions:
        what = f"{longest} tokens are more" if causal else f"sentences of {longest} tokens are longer"
        raise UserError(f"{what} than model.max_positions = {positions}; raise it")


def writer(config: Config) -> Write:
    """Beam search with a fresh translation model, or the likeliest tokens by a causal one."""
    model, _, params = fresh_model(config)
    if isinstance(model, Bert):
        generator = jax.jit(functools.partial(generate, model, end=None), static_argnames="room")
        sampling = Sampling(jnp.float32(0), jax.random.key(0), jnp.ones(config.model.vocab_size, bool))
        return functools.partial(_write_on, functools.partial(generator, params), sampling)
    assert isinstance(model, Seq2Seq)
    forbidden = (PAD_ID, BOS_ID, EOS_ID)
    search = model_decoder(model, params, num_hypotheses=HYPOTHESES, length_penalty=LENGTH_PENALTY, forbidden=forbidden)
    return functools.partial(_translate, search, config.model.max_positions)


def candidate(write: Write, work: Workload, name: str, **fields: Any) -> Candidate:
    """Decoding of a workload, with these fields of a Candidate. A run raises UserError where other
    numbers of tokens are written.
    """

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            written = write(work)
            if [len(tokens) for tokens in written] != list(work.lengths) or np.isin(np.concatenate(written), work.marks).any():
                raise UserError(f"{name} did not write as many tokens as it was asked for; the times cannot be compared")

    return Candidate(name=name, run=run, work=sum(work.lengths), **fields)


def _write_on(write: Callable[..., Any], sampling: Sampling, work: Workload) -> list[np.ndarray]:
    prompts, limits = np.stack(work.sources), np.array(work.lengths, np.int32)
    rows, length = prompts.shape
    batch = {
        "inputs": prompts,
        "lengths": np.full(rows, length, np.int32),
        "limits": limits,
        "row": np.arange(rows, dtype=np.int32),
    }
    return list(np.asarray(write(batch, sampling, room=max(work.lengths)).tokens))


def _translate(search: Decoder, max_positions: int, work: Workload) -> list[np.ndarray]:
    sentences = [Sentence(line, tokens) for line, tokens in enumerate(work.sources)]
    if work.setting["setting"] == "batch":
        batches = [(sentences, len(sentences), max(map(len, work.sources)))]
        room = max(work.lengths)
    else:  # with the limit of `mhsh predict` on target tokens
        batches, room = sentence_batches(sentences, max_positions, BATCH_TOKENS), None
    written: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sentences)
    for members, rows, length in batches:
        limits = np.zeros(rows, np.int32)
        limits[: len(members)] = [work.lengths[sentence.line] for sentence in members]
        decoded = search(source_batch(members, rows, length), limits, room or length_limit(length, max_positions))
        for sentence, tokens, count in zip(members, np.asarray(decoded.tokens), decoded.lengths, strict=False):
            written[sentence.line] = tokens[:count]
    return written
