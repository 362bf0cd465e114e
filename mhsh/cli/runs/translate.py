"""mhsh translate: lines of text through a trained model, from a file or standard input to a file or
standard output.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from mhsh.cli.flags import add_step
from mhsh.cli.parser import examples
from mhsh.config.schema import Config
from mhsh.data.text_files import read_lines
from mhsh.data.tokenizers.subword import SubwordTokenizer, load_subword
from mhsh.errors import UserError
from mhsh.files import write_new
from mhsh.run_folder import RunFolder, vocab_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh translate runs/tiny --input=lines.txt --output=translated.txt",
        "mhsh translate runs/tiny --beam=1 < lines.txt",
    )
    parser.add_argument("folder", metavar="RUN")
    parser.add_argument("--input", dest="source", metavar="FILE", help="UTF-8, plain or .gz (default: standard input)")
    parser.add_argument("--output", metavar="FILE", help="a new file (default: standard output)")
    parser.add_argument("--beam", type=int, default=4, metavar="K", help="hypotheses a sentence (default: 4)")
    parser.add_argument("--length-penalty", type=float, default=0.6, metavar="A", help="score / length ** A (default: 0.6)")
    add_step(parser)
    parser.add_argument(
        "--average", dest="num_averaged", type=int, default=1, metavar="N", help="average the last N checkpoints (default: 1)"
    )
    parser.add_argument("--batch-tokens", type=int, default=4096, metavar="N", help="source tokens at once (default: 4096)")
    parser.add_argument("--overlong", default="error", metavar="WHAT", help="lines that are too long: error (default) or cut")


def run(
    folder: str,
    source: str | None,
    output: str | None,
    beam: int,
    length_penalty: float,
    step: int | None,
    num_averaged: int,
    batch_tokens: int,
    overlong: str,
) -> int:
    """Translates the lines of `source` (None: standard input) into as many lines of `output` (None:
    standard output).

    Args:
      step: the checkpoint (None: the newest); with `num_averaged` above 1, the mean of it and those
        kept before it.
      overlong: what is done with a line longer than the model's positions: "error" or "cut".

    Raises:
      UserError: a value is impossible, the run is of another kind or its vocabulary does not match,
        a line is not UTF-8 or too long, or `output` exists.
    """
    from mhsh.evaluation.translation import model_decoder, translate_lines
    from mhsh.models.seq2seq import Seq2Seq
    from mhsh.training.checkpoints.restore import load_for_inference

    _check_values(beam, length_penalty, num_averaged, batch_tokens, overlong)
    _check_new(output)
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    if config.model.objective != "translation":
        raise UserError(f"{folder} is a run of model.objective = {config.model.objective!r}; mhsh translate needs 'translation'")
    tokenizer = _tokenizer(run_folder, config)
    lines = read_lines(source)
    model, params = load_for_inference(run_folder, config, step, num_averaged)
    assert isinstance(model, Seq2Seq)
    translated = translate_lines(
        lines,
        tokenizer,
        model_decoder(model, params, num_hypotheses=beam, length_penalty=length_penalty),
        max_positions=config.model.max_positions,
        batch_tokens=batch_tokens,
        cut_overlong=overlong == "cut",
    )
    _write("".join(line + "\n" for line in translated.lines).encode("utf-8"), output)
    if translated.num_cut:
        print(
            f"mhsh translate: {translated.num_cut} lines were cut to model.max_positions = {config.model.max_positions} tokens",
            file=sys.stderr,
        )
    return 0


def _check_values(beam: int, length_penalty: float, num_averaged: int, batch_tokens: int, overlong: str) -> None:
    for name, value in (("--beam", beam), ("--average", num_averaged), ("--batch-tokens", batch_tokens)):
        if value < 1:
            raise UserError(f"{name} = {value}; allowed: 1 or more")
    if overlong not in ("error", "cut"):
        raise UserError(f"--overlong = {overlong}; allowed: error, cut")
    if not (math.isfinite(length_penalty) and length_penalty >= 0):
        raise UserError(f"--length-penalty = {length_penalty}; allowed: 0 or more")


def _check_new(output: str | None) -> None:
    if output is None:
        return
    if Path(output).exists():
        raise UserError(f"{output} exists; choose another --output, or remove it first")
    if not Path(output).parent.is_dir():
        raise UserError(f"there is no folder {Path(output).parent} for --output; make it first")


def _tokenizer(folder: RunFolder, config: Config) -> SubwordTokenizer:
    """The run's vocabulary, after checking that it is the one that the model was trained with."""
    path = folder.path / vocab_file(config)
    tokenizer = load_subword(path)
    recorded = folder.read_run()["data"]["vocab_fingerprint"]
    if tokenizer.fingerprint != recorded:
        raise UserError(
            f"{path} is not the vocabulary of this run (fingerprint {tokenizer.fingerprint[:12]}, in run.json {recorded[:12]}); "
            "put the run's own back"
        )
    return tokenizer


def _write(content: bytes, output: str | None) -> None:
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    write_new(output, content)
