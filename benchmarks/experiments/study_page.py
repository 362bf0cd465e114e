"""The page of the study's results, docs/study/index.md, from the reports of `mhsh compare`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

# The parts of the page, in order, with their headings. docs/study/stability.md has the stages
# stability and steady, which ask what trains and not which loss is lower.
PARTS = {
    "heads": "24 heads in 3 layers of eight, or otherwise",
    "heads_own": "24 heads with initial values of each layer's own shape",
    "longer": "24 heads, three times as many steps",
    "small": "12 heads, D = 64",
    "more_heads": "48 heads, D = 128",
    "large": "48 heads, D = 256",
    "leaner": "A standard decoder: more heads in the same width, fewer layers, or both",
    "bert_mini": "BERT, D = 128: 2 layers of four heads, or otherwise, masked",
    "bert_base": "BERT-base: 12 layers of twelve heads and 144 of one, masked",
    "gap": "Does the difference change with size?",
    "gap_heads": "Does it with more heads in the same width?",
    "gap_bert": "Does a masked model say otherwise, with size?",
    "width": "Depth without fewer heads a layer: deeper and narrower at equal size",
    "admin": "Three layers of eight heads and 24 of one, Admin",
    "pre_ln": "Pre-LN instead of Admin",
    "completep": "CompleteP instead of Admin",
    "completep_half": "CompleteP with half its exponent instead of Admin",
    "deepnorm": "DeepNorm instead of Admin",
    "peri_ln": "Peri-LN instead of Admin",
    "keel": "Keel instead of Admin",
    "gap_schemes": "Does the residual scheme change the difference?",
    "probes": "Is the depth used?",
    "numbers": "Translation of number words, 6 layers of eight heads and 48 of one",
    "multi30k": "Translation of multi30k, 6 layers of eight heads and 48 of one",
    "multi30k_whole": "Translation of multi30k to the end, 4 layers of four heads and 16 of one",
    "trained": "24 heads, by tokens a parameter",
    "trained_muon": "24 heads, by tokens a parameter, with Muon",
    "gap_optimizers": "Does the optimizer change the differences?",
    "decoder": "A standard decoder: fewer heads a layer, more layers, or both",
    "decoder_kv": "A standard decoder: heads that share keys and values",
    "decided": "A standard decoder at 20 tokens a parameter, at finer rates",
    "books": "A standard decoder on novels",
    "wider": "A standard decoder, twice as wide",
    "larger": "A standard decoder of five million parameters",
    "recall": "Associative recall, one key at once",
    "recall_two": "Associative recall, two keys at once",
    "recall_longer": "Associative recall, two keys at once, three times as long",
    "copying": "Copying",
    "example": "The paper's example: 6 layers of six heads and 36 of one",
}
# The parts that set several stages beside each other; every other one is a stage.
BESIDE = {
    "gap": ("small", "heads", "large"),
    "gap_heads": ("admin", "more_heads"),
    "gap_bert": ("bert_mini", "bert_base"),
    "gap_schemes": ("admin", "pre_ln", "completep", "completep_half", "deepnorm", "peri_ln", "keel"),
    "gap_optimizers": ("trained", "trained_muon"),
}

HEAD = """\
<!-- written by bash launch/study page -->
# The study: results

[Heads or depth?](../evidence.md) says what was asked and what the results mean. The tables are by
`mhsh compare`, under [its rules](../reports.md#the-rules): final validation losses in nats per
predicted token, with 95 % intervals. ▼ is significantly lower and ▲ higher than the baseline by a
test that is corrected for all tests of a page; a difference without a mark is not significant. A
model that is over 2 % larger is compared only because it ends worse, or its section says otherwise.
All runs of a group trained unless its table says otherwise: five seeds, six for lengths of training
(budget: steps), in translation three or eight, at finer rates twelve, twice as wide four. A map of
rates has the means over the seeds that choose: two, at finer rates four. `launch/study STAGE
--dry-run` shows the rates of a stage. *Around* is the difference with what rates between those
tried may hide, where these move the interval.
"""
_SECTION = r"(?:budget|scheme) \w*"  # the name of a section of a report


def write_page(published: Path, page: Path) -> None:
    """Writes index.md into the folder `page`, with its pictures and the tables of probes. Parts
    without a report in `published` stay as they are there.
    """
    page.mkdir(parents=True, exist_ok=True)
    index = page / "index.md"
    earlier = dict(re.findall(r"(?ms)^## (.*?)\n(.*?)\s*(?=^## |\Z)", index.read_text(encoding="utf-8"))) if index.exists() else {}
    text = HEAD
    for part, heading in PARTS.items():
        if (published / part).is_dir():
            text += f"\n## {heading}\n" + "".join(_section(file, page) for file in sorted((published / part).glob("*.md")))
        elif heading in earlier:
            text += f"\n## {heading}\n{earlier[heading]}\n"
    index.write_text(text, encoding="utf-8")
    for picture in re.findall(r"\]\(([a-z_0-9]*/[a-z_0-9]*\.png)\)$", text, re.MULTILINE):
        if (published / picture).exists():
            (page / picture).parent.mkdir(exist_ok=True)
            shutil.copy(published / picture, page / picture)


def _section(file: Path, page: Path) -> str:
    """The section of the page on a report. The tables of probes, six shapes wide, lie beside it."""
    report, part = file.read_text(encoding="utf-8"), file.parent.name
    lines = "\n".join(shorten_report(report.splitlines(), part))
    text = "\n" + re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"
    if part != "probes":
        return text
    rows = [re.sub(r"^\| *| *\|$", "", line) for line in report.splitlines() if re.match(r"\|(?! ---)", line)]
    table = page / "probes" / f"{file.stem}.tsv"
    table.parent.mkdir(exist_ok=True)
    table.write_text("".join(re.sub(r" *\| *", "\t", row) + "\n" for row in rows), encoding="utf-8")
    return f"{text}\n[All figures](probes/{table.name})\n"


def shorten_report(report: Sequence[str], part: str) -> Iterator[str]:
    """The lines of a report that the page keeps. Of one stage they are those on sizes, the figure
    of its rates and the groups, which show its verdict (the first bullet) and the best rates; of
    several stages only the verdicts and how the difference changes. The page says once that the
    larger models end worse and that all runs of most groups trained.
    """
    is_several, told, bullets = part in BESIDE, set(), 0
    for block in _blocks(report):
        first = block[0]
        if first.endswith(("not tested:", "Every run:")):
            return
        if first.startswith("- "):
            bullets += 1
            yield from _bullet(block, is_several, bullets == 1, told)
        elif first.startswith("|"):
            yield from () if is_several or part == "probes" else _table(block)
        elif re.fullmatch(f"{_SECTION}: Results by group:", first):
            yield first.removesuffix(" Results by group:")
        elif not _is_left_out(first, is_several):
            yield re.sub(r"\]\(([a-z_0-9]*)\.[a-z]*\)$", rf"]({part}/\1.png)", first)


def _is_left_out(line: str, is_several: bool) -> bool:
    if line.startswith(("<!--", "![Curves]", "▼")) or line.endswith("Results by group:"):
        return True
    return is_several and line.startswith("![") and " at the end of each length]" not in line


def _blocks(report: Sequence[str]) -> Iterator[list[str]]:
    """Bullets with their further lines, whole tables, and all else line by line."""
    block: list[str] = []
    for line in report:
        goes_on = block and (
            line.startswith("  ") if block[0].startswith("- ") else line.startswith("|") and block[0].startswith("|")
        )
        if block and not goes_on:
            yield block
        block = [*block, line] if goes_on else [line]
    if block:
        yield block


def _bullet(lines: Sequence[str], is_several: bool, is_first: bool, told: set[str]) -> Iterator[str]:
    """The part of a bullet that the page keeps; none where it keeps nothing of it."""
    said = " ".join(line.strip() for line in lines)
    kept = "\n".join(lines)
    if ": A fair comparison: only " in said:
        # A section of one length or several says once that a group is larger.
        said, is_larger = re.subn(r": A fair comparison: .* \(it has ", ": ", re.sub(r"^- budget \d*: ", "- ", said))
        said, is_worse = re.subn(r" and ends worse all the same\)\.$", ".", said)
        kept = said if is_larger and is_worse and said not in told else ""
        told.add(said)
    if is_several:
        # The heading of the part says that a difference changes, the tables of the stages which two
        # groups differ.
        short = re.sub(r" \(95 % [^)]*\)\.$", ".", said)
        short = re.sub(r" \([^)]* and [^)]*\): (.*) changes the difference from .* to .*, by ", r", \1: ", short)
        said, kept = short, kept if short == said else short
    is_in_table = re.match(rf"- ([^:]*: )?The best |- {_SECTION}: .* ends [0-9.]* (above|below) ", said)
    if kept and not is_in_table and ("more parameters" not in kept if is_several else not is_first):
        yield kept


def _table(rows: Sequence[str]) -> Iterator[str]:
    """Without the column of training where all runs trained."""
    cells = [re.split(r" *\| *", row)[1:-1] for row in rows]

    def is_kept(column: int) -> bool:
        head, *values = (row[column] for row in (cells[0], *cells[2:]))
        return head != "trained" or any(trained != runs for trained, _, runs in (value.partition(" of ") for value in values))

    kept = [column for column in range(len(cells[0])) if is_kept(column)]
    yield from (f"| {' | '.join(row[column] for column in kept)} |" for row in cells)
