"""mhsh compare: runs and sweeps against a baseline."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from mhsh.errors import UserError
from mhsh.storage.files import absolute, check_suffix, check_writable
from mhsh.storage.questions import is_dir
from mhsh.sweep.folder import check_margin

if TYPE_CHECKING:
    from mhsh.report.report import Report


class CompareOptions(NamedTuple):
    """The options of `mhsh compare`."""

    paths: Sequence[str]
    over: str | None = None
    by: Sequence[str] = ()
    choosing_seeds: int | None = None
    measure: str = "loss"
    baseline: str | None = None
    treatment: Sequence[str] | None = None
    margin: float | None = None


EXAMPLES = ("mhsh compare runs/6l4h_post_ln runs/24l1h_admin", "mhsh compare sweep --measure=bleu")


def run(
    *paths: Annotated[str, Parameter(name="PATH")],
    over: str | None = None,
    by: str | None = None,
    choosing_seeds: int | None = None,
    measure: str = "loss",
    baseline: str | None = None,
    treatment: str | None = None,
    margin: float | None = None,
    out: str | None = None,
    png: bool = False,
    paper: bool = False,
    watch: bool = False,
    port: int | None = None,
) -> int:
    """Compares runs and sweeps with a baseline.

    Prints a table and writes report.html, and beside it JSON, CSV, Markdown and SVG. The exit
    status is 2 where something could not be read: a line names it, and the rest is drawn.

    Args:
      paths: runs, sweeps and folders that hold runs
      over: take each shape at its own best value of this FIELD, such as lr; by default as the
        plan of the sweep says, and with none each value by itself
      by: compare by these swept FIELD,..., once for each setting of the others but --over's
      choosing_seeds: with --over, how many of the seeds choose, the lowest ones; by default half
      measure: what is tested: loss, or a metric such as bleu
      baseline: the group, or a run of it, to compare with; the first by default
      treatment: what is meant to differ: FIELD,... or shape; by default shape and what was swept
      margin: groups are equivalent if they surely differ by less; by default as the plans say
      out: the page; report.html by default
      png: write the figures as PNG too
      paper: write report.pdf, all figures in a serif face, and report.tex, the table of results
      watch: serve the page on this machine and refresh it while runs train
      port: where --watch serves it; any free port by default
    """
    if not paths:
        raise UserError("mhsh compare needs PATH; see mhsh compare --help")
    check_margin(margin)
    if choosing_seeds is not None and over is None:
        raise UserError("--choosing-seeds goes with --over, the field that they choose a value of")
    fields, meant = by.split(",") if by else (), treatment.split(",") if treatment else None
    question = CompareOptions(paths, over, fields, choosing_seeds, measure, baseline, meant, margin)
    if watch:
        if out is not None or png or paper:
            raise UserError("--watch serves the page and writes nothing; do not give --out, --png or --paper")
        return _watch(question, port or 0)
    if port is not None:
        raise UserError("--port is for --watch; give both or neither")
    page = "report.html" if out is None else out
    beside = "this is the page; beside it lie .json, .md, .csv and .svg (with --png .png, with --paper .pdf, .tex)"
    check_suffix("--out", page, beside, ".html", ".htm")
    check_writable("--out", page)
    return 2 if write_report(question, Path(page), png, paper).problems else 0


def write_report(question: CompareOptions, page: Path, with_png: bool = False, for_paper: bool = False) -> Report:
    """Writes the report and prints its start. Raises UserError where there is nothing to draw, a
    file is in the way that is not a former report, or an argument is wrong.
    """
    # What measures and draws takes a second to import; `mhsh compare --help` does not need it.
    from mhsh.report.files import prepare_files

    write_files = prepare_files(page, with_png, for_paper)
    report = make_report(question)
    if report.curves is None:
        raise UserError("; ".join(report.problems) or report.title)
    for problem in report.problems:
        print(f"mhsh compare: {problem}", file=sys.stderr)
    paths = write_files(report)
    from rich.console import Console

    from mhsh.report.terminal import print_report

    # Written first: a closed pipe on stdout (mhsh compare ... | head) must not cost the report.
    print_report(report, Console(highlight=False))
    print(f"\nReport: {page}")
    print(f"Beside it: {', '.join(path.name for path in paths if path != page)}")
    return report


def make_report(question: CompareOptions) -> Report:
    """The report on runs. Raises UserError where an argument is wrong."""
    from mhsh.report.build import build_report
    from mhsh.verdict.experiment import load_experiment
    from mhsh.verdict.findings import compare, judge_page, margin_of
    from mhsh.verdict.treatment import treatment_of
    from mhsh.verdict.tuning import tune_sections

    experiment = load_experiment(question.paths)
    treatment = treatment_of(experiment.axes, question.treatment)
    sections = tune_sections(experiment, question.by, question.over, question.choosing_seeds, question.measure)
    comparisons = [compare(section, question.measure, question.baseline, treatment, words) for words, section in sections.items()]
    margin = margin_of(experiment, question.margin)
    return build_report(judge_page(comparisons, margin), margin)


def _watch(question: CompareOptions, port: int) -> int:
    from mhsh.report.watch import LOOPBACK, LiveReport, Server
    from mhsh.verdict.runs import find_runs

    report = LiveReport(question.paths, lambda: make_report(question))
    try:
        if not any(is_dir(absolute(path)) for path in question.paths):
            raise UserError(f"nothing to watch: none of {', '.join(question.paths)} is a folder; start a run first")
        report.newest()  # what cannot be read or compared is said here, not to a browser
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}; give folders that can be read") from error
    server = Server(report, port)
    # Suppressed from before the address is told: who reads it may interrupt at once.
    with server, contextlib.suppress(KeyboardInterrupt):
        # Flushed: whoever reads this through a pipe waits for the address.
        print(f"Watching {len(find_runs(question.paths)[0])} runs at {server.address} (Ctrl-C ends it)")
        print(f"From another machine: ssh -L {server.server_port}:{LOOPBACK}:{server.server_port} THIS-HOST", flush=True)
        server.serve_forever()
    return 0
