"""mhsh bench decode: useful target tokens a second of beam search, beside MarianMTModel of
transformers in the same shape.

Weights are random. Everything is decoded in turns, in two settings:

batch: one batch of sentences of one length, all decoded by the same number of steps (the end mark
  is suppressed).
file: sentences of many lengths (log-normal, 8 to 60 tokens, drawn once), each translated to as many
tokens as it has itself. mhsh makes its own batches, as `mhsh translate` does; the peer `marian`
gets batches of 32 in the order of the file, which is what a pipeline does, and `marian-sorted` in
the order of length. A batch runs until its last sentence is whole, and only the tokens of whole
sentences count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mhsh.bench import mhsh_steps
from mhsh.bench.candidate import Candidate
from mhsh.bench.peers import build
from mhsh.bench.results import cell, document
from mhsh.bench.rounds import Plan, take_turns
from mhsh.config.schema import Config
from mhsh.data.tokenizers.subword import BOS_ID, EOS_ID, PAD_ID
from mhsh.errors import UserError
from mhsh.evaluation.translation import Decoder, Sentence, length_limit, model_decoder, sentence_batches, source_batch
from mhsh.models.seq2seq import Seq2Seq

PEERS = ("marian", "marian-sorted")
HYPOTHESES, LENGTH_PENALTY = 4, 0.6  # as `mhsh translate` has them by default
BATCH_TOKENS = 4096  # the same
SHORTEST, LONGEST = 8, 60  # tokens of the file's sentences
SPECIALS = (PAD_ID, BOS_ID, EOS_ID)

Sources = Sequence[np.ndarray]
# (sources with their end marks, the target tokens of each) -> the tokens of each
Decode = Callable[[Sources, Sequence[int]], list[np.ndarray]]


def decode(
    configs: Mapping[str, Config],
    chosen: Sequence[str],
    *,
    sentences: int,
    source_tokens: int,
    steps: int,
    file_sentences: int,
    rounds: int,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """The document of `configs` (by name), each with its peers.

    Args:
      sentences, source_tokens, steps: of the setting `batch`: how many, how long with the end mark,
      and target tokens of each.
      file_sentences: of the setting `file`.

    Raises:
      UserError: no translation model, positions too few, or a shape that Marian cannot have.
    """
    build.require(chosen)
    for config in configs.values():
        _check(config, chosen, max(source_tokens, steps, LONGEST))
    generator = np.random.default_rng(0)
    drawn = np.clip(np.rint(generator.lognormal(3.1, 0.5, file_sentences)), SHORTEST, LONGEST).astype(int).tolist()
    vocabulary = min(config.model.vocab_size for config in configs.values())
    settings: dict[str, tuple[Sources, list[int]]] = {
        "batch": (random_sources(generator, [source_tokens] * sentences, vocabulary), [steps] * sentences),
        "file": (random_sources(generator, drawn, vocabulary), drawn),
    }
    note("making the models")
    decoders = {name: _decoders(name, config, chosen) for name, config in configs.items()}
    cells = []
    for setting, (sources, lengths) in settings.items():
        note(f"setting {setting}: {sum(lengths)} target tokens")
        candidates = [
            _contestant(name, peer, configs[name], by_setting[setting], sources, lengths)
            for name in configs
            for peer, by_setting in decoders[name].items()
            if setting in by_setting
        ]
        times = take_turns(candidates, Plan(rounds, 1, 0.0, each=True), note)
        cells.append(cell({"setting": setting, "sentences": len(sources), "tokens": sum(lengths)}, candidates, times))
    options = {"rounds": rounds, "sentences": sentences, "source_tokens": source_tokens, "steps": steps}
    options |= {"file_sentences": file_sentences, "beam": HYPOTHESES, "length_penalty": LENGTH_PENALTY}
    return document("decode", "target token", options, configs, cells, {}, build.torch_environment() if chosen else None)


def random_sources(generator: np.random.Generator, lengths: Sequence[int], vocabulary: int) -> list[np.ndarray]:
    """Sentences of so many tokens, the end mark included."""
    return [np.append(generator.integers(EOS_ID + 1, vocabulary, length - 1), EOS_ID).astype(np.int32) for length in lengths]


def _check(config: Config, chosen: Sequence[str], longest: int) -> None:
    model = config.model
    if model.objective != "translation":
        raise UserError(f"mhsh bench decode: model.objective = {model.objective!r} does not translate; give configs/translation.py")
    if longest > model.max_positions:
        raise UserError(f"sentences of {longest} tokens are longer than model.max_positions = {model.max_positions}; raise it")
    unfit = {
        "model.embed_dim": (model.embed_dim, model.num_heads * model.head_dim, "model.num_heads x model.head_dim"),
        "model.num_decoder_layers": (model.num_decoder_layers, model.num_layers, "model.num_layers"),
        "model.residual": (model.residual, "post_ln", "what Marian has"),
        "model.positions": (model.positions, "sinusoidal", "what Marian has"),
    }
    for field, (here, there, what) in unfit.items() if chosen else ():
        if here != there:
            raise UserError(f"--peer: {field} = {here!r} must be {there!r}, {what}; set it, or leave --peer out")


def _decoders(name: str, config: Config, chosen: Sequence[str]) -> dict[str, dict[str, Decode]]:
    """By candidate, then by setting. On one batch there is nothing to sort."""
    model, _, params = mhsh_steps.built(config)
    assert isinstance(model, Seq2Seq)
    search = model_decoder(model, params, num_hypotheses=HYPOTHESES, length_penalty=LENGTH_PENALTY, forbidden=SPECIALS)
    found: dict[str, dict[str, Decode]] = {
        name: {"batch": partial(_one_batch, search), "file": partial(_file, search, config.model.max_positions)}
    }
    if chosen:
        from mhsh.bench.peers.marian import Marian

        marian = Marian(config, HYPOTHESES, LENGTH_PENALTY)
        settings: dict[str, dict[str, Decode]] = {
            "marian": {"batch": marian.one_batch, "file": marian.in_order},
            "marian-sorted": {"file": marian.sorted_by_length},
        }
        found |= {peer: settings[peer] for peer in chosen}
    return found


def _contestant(name: str, peer: str, config: Config, search: Decode, sources: Sources, lengths: Sequence[int]) -> Candidate:
    is_ours = peer == name

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            found = search(sources, lengths)
            if [len(tokens) for tokens in found] != list(lengths) or np.isin(np.concatenate(found), (PAD_ID, EOS_ID)).any():
                raise UserError(f"{peer} has not written as many tokens as were asked for; there is nothing to compare")

    return Candidate(
        name=peer if is_ours else build.peer_name(peer, name),
        label=mhsh_steps.label(config) if is_ours else build.label(config, "transformers MarianMTModel", peer),
        run=run,
        work=sum(lengths),
        baseline=mhsh_steps.baseline_of(name) if is_ours else name,
        facts=mhsh_steps.identity(name, config, 1) if is_ours else {"config": name, "implementation": "transformers MarianMTModel"},
    )


def _one_batch(search: Decoder, sources: Sources, lengths: Sequence[int]) -> list[np.ndarray]:
    members = [Sentence(line, tokens) for line, tokens in enumerate(sources)]
    decoded = search(source_batch(members, len(members), max(map(len, sources))), np.array(lengths, np.int32), max(lengths))
    return [tokens[:count] for tokens, count in zip(decoded.tokens, decoded.lengths, strict=True)]


def _file(search: Decoder, max_positions: int, sources: Sources, lengths: Sequence[int]) -> list[np.ndarray]:
    """In the batches of `mhsh translate`, with its room for targets."""
    found: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sources)
    for members, rows, length in sentence_batches([Sentence(*each) for each in enumerate(sources)], max_positions, BATCH_TOKENS):
        limits = np.zeros(rows, np.int32)
        limits[: len(members)] = [lengths[sentence.line] for sentence in members]
        decoded = search(source_batch(members, rows, length), limits, length_limit(length, max_positions))
        for sentence, tokens, count in zip(members, decoded.tokens, decoded.lengths, strict=False):
            found[sentence.line] = tokens[:count]
    return found
