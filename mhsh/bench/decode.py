"""mhsh bench decode: useful target tokens a second of beam search, beside transformers' Marian.

Both have the same shape and random weights. There are two settings:

batch: one batch of sentences of one length, all decoded for the same number of steps (the end mark
  is suppressed).
file: sentences of many lengths (log-normal, 8 to 60 tokens, drawn once), each translated to as many
  tokens as it has itself. mhsh makes its own batches, as `mhsh translate` does. The peer `marian`
  gets batches of 32 in the order of the file, as a pipeline gives them, and `marian-sorted` in the
  order of length. A batch runs until its last sentence is finished; only the tokens of the
  sentences themselves count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from mhsh.bench import mhsh_steps
from mhsh.bench.harness import Candidate, Measured, Schedule, bench_results, take_turns
from mhsh.bench.peers import build
from mhsh.bench.results import BenchResults
from mhsh.config.schema import Config
from mhsh.data.tokenizers.subword import BOS_ID, EOS_ID, PAD_ID
from mhsh.errors import UserError
from mhsh.evaluation.translation import Decoder, Sentence, length_limit, model_decoder, sentence_batches, source_batch
from mhsh.models.seq2seq import Seq2Seq

PEERS = ("marian", "marian-sorted")
MARIAN = "transformers MarianMTModel"
HYPOTHESES, LENGTH_PENALTY = 4, 0.6  # the defaults of `mhsh translate`
BATCH_TOKENS = 4096  # likewise
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
) -> BenchResults:
    """Times beam search with `configs`, by name, and with the `chosen` peers of each.

    Args:
      sentences, source_tokens, steps: of the setting `batch`: how many sentences, how long each
        is with its end mark, and how many target tokens each gets.
      file_sentences: how many sentences the setting `file` has.

    Raises:
      UserError: not a translation model, too few positions, or a shape that Marian cannot have.
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
    measured = []
    for setting, (sources, lengths) in settings.items():
        note(f"setting {setting}: {sum(lengths)} target tokens")
        candidates = [
            _candidate(name, peer, configs[name], by_setting[setting], sources, lengths)
            for name in configs
            for peer, by_setting in decoders[name].items()
            if setting in by_setting
        ]
        times = take_turns(candidates, Schedule(rounds, 1, 0.0, each=True), note)
        measured.append(Measured({"setting": setting, "sentences": len(sources), "tokens": sum(lengths)}, candidates, times))
    options = {"rounds": rounds, "sentences": sentences, "source_tokens": source_tokens, "steps": steps}
    options |= {"file_sentences": file_sentences, "beam": HYPOTHESES, "length_penalty": LENGTH_PENALTY}
    torch = build.torch_environment() if chosen else None
    return bench_results("decode", "target token", options, configs, measured, {}, torch)


def random_sources(generator: np.random.Generator, lengths: Sequence[int], vocabulary: int) -> list[np.ndarray]:
    """Random sentences of these lengths in tokens, each with an end mark."""
    return [np.append(generator.integers(EOS_ID + 1, vocabulary, length - 1), EOS_ID).astype(np.int32) for length in lengths]


def _check(config: Config, chosen: Sequence[str], longest: int) -> None:
    model = config.model
    if model.objective != "translation":
        raise UserError(f"mhsh bench decode: model.objective = {model.objective!r} does not translate; give translation:VARIANT")
    if longest > model.max_positions:
        raise UserError(f"sentences of {longest} tokens are longer than model.max_positions = {model.max_positions}; raise it")
    unfit = {
        "model.embed_dim": (model.embed_dim, model.num_heads * model.head_dim, "model.num_heads x model.head_dim"),
        "model.num_decoder_layers": (model.num_decoder_layers, model.num_layers, "model.num_layers"),
        "model.residual": (model.residual, "post_ln", "what Marian has"),
        "model.qk_norm": (model.qk_norm, False, "what Marian has"),
        "model.positions": (model.positions, "sinusoidal", "what Marian has"),
    }
    for field, (here, there, what) in unfit.items() if chosen else ():
        if here != there:
            raise UserError(f"--peer: {field} = {here!r} must be {there!r}, {what}; set it, or leave --peer out")


def _decoders(name: str, config: Config, chosen: Sequence[str]) -> dict[str, dict[str, Decode]]:
    """By candidate, then by setting; marian-sorted has nothing to sort in the setting `batch`."""
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


def _candidate(name: str, peer: str, config: Config, search: Decode, sources: Sources, lengths: Sequence[int]) -> Candidate:
    is_mhsh = peer == name

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            found = search(sources, lengths)
            if [len(tokens) for tokens in found] != list(lengths) or np.isin(np.concatenate(found), (PAD_ID, EOS_ID)).any():
                raise UserError(f"{peer} did not write as many tokens as it was asked for; there is nothing to compare")

    return Candidate(
        name=peer if is_mhsh else build.peer_name(peer, name),
        label=mhsh_steps.label(config) if is_mhsh else build.label(config, MARIAN, peer),
        run=run,
        work=sum(lengths),
        baseline=mhsh_steps.baseline_of(name) if is_mhsh else name,
        facts=mhsh_steps.identity(name, config, 1) if is_mhsh else {"config": name, "devices": 1, "implementation": MARIAN},
    )


def _one_batch(search: Decoder, sources: Sources, lengths: Sequence[int]) -> list[np.ndarray]:
    members = [Sentence(line, tokens) for line, tokens in enumerate(sources)]
    decoded = search(source_batch(members, len(members), max(map(len, sources))), np.array(lengths, np.int32), max(lengths))
    return [tokens[:count] for tokens, count in zip(np.asarray(decoded.tokens), decoded.lengths, strict=True)]


def _file(search: Decoder, max_positions: int, sources: Sources, lengths: Sequence[int]) -> list[np.ndarray]:
    """In the batches of `mhsh translate`, with its limit on target tokens."""
    found: list[np.ndarray] = [np.zeros(0, np.int32)] * len(sources)
    for members, rows, length in sentence_batches([Sentence(*each) for each in enumerate(sources)], max_positions, BATCH_TOKENS):
        limits = np.zeros(rows, np.int32)
        limits[: len(members)] = [lengths[sentence.line] for sentence in members]
        decoded = search(source_batch(members, rows, length), limits, length_limit(length, max_positions))
        for sentence, tokens, count in zip(members, np.asarray(decoded.tokens), decoded.lengths, strict=False):
            found[sentence.line] = tokens[:count]
    return found
