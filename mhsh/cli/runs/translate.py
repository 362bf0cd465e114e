"""mhsh translate: lines of text through a trained model, from a file or standard input to a file or
standard output.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mhsh.cli.flags import add_checkpoint
from mhsh.cli.parser import examples
from mhsh.data.text_files import read_lines
from mhsh.errors import UserError
from mhsh.files import write_new
from mhsh.run_folder import RunFolder


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
    add_checkpoint(parser)
    parser.add_argument("--batch-tokens", type=int, default=4096, metavar="N", help="source tokens at once (default: 4096)")
    parser.add_argument("--overlong", default="error", metavar="WHAT", help="lines that are too long: error (default) or cut")


def run(
    folder: str,
    source: str | None,
    output: str | None,
    beam: int,
    length_penalty: float,
    step: int | None,
    average: int,
    batch_tokens: int,
    overlong: str,
) -> int:
    """Translates the lines of `source` (None: standard input) into as many lines of `output` (None:
    standard output).

    Args:
      step: the checkpoint (None: the newest); with `average` above 1, the mean of it and those
        kept before it.
      overlong: what is done with a line longer than the model's positions: "error" or "cut".

    Raises:
      UserError: a value is impossible, the run is of another kind or its vocabulary does not match,
        a line is not UTF-8 or too long, or `output` exists.
    """
    from mhsh.inference import check_beam, check_objective, load

    check_beam(beam, length_penalty, batch_tokens)
    if overlong not in ("error", "cut"):
        raise UserError(f"--overlong = {overlong}; allowed: error, cut")
    _check_new(output)
    config = RunFolder(folder).read_config()
    check_objective(folder, config, "translate")
    lines = read_lines(source)
    translated = load(folder, step=step, average=average).translate_lines(
        lines, beam=beam, length_penalty=length_penalty, batch_tokens=batch_tokens, cut_overlong=overlong == "cut"
    )
    _write("".join(line + "\n" for line in translated.lines).encode("utf-8"), output)
    if translated.num_cut:
        print(
            f"mhsh translate: {translated.num_cut} lines were cut to model.max_positions = {config.model.max_positions} tokens",
            file=sys.stderr,
        )
    return 0


def _check_new(output: str | None) -> None:
    if output is None:
        return
    if Path(output).exists():
        raise UserError(f"{output} exists; choose another --output, or remove it first")
    if not Path(output).parent.is_dir():
        raise UserError(f"there is no folder {Path(output).parent} for --output; make it first")


def _write(content: bytes, output: str | None) -> None:
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    write_new(output, content)
