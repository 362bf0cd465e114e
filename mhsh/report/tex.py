"""The table of results for a paper: report.tex, for `\\input` in a document that has `booktabs`."""

from __future__ import annotations

from mhsh.report.report import CAUTION, Report, Table
from mhsh.text import sanitize

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\u2212": "$-$",
    "\u25bc": r"$\blacktriangledown$",
    "\u25b2": r"$\blacktriangle$",
    "\u2020": r"$\dagger$",
}


def report_to_tex(report: Report, author: str) -> bytes:
    """A table with a row a group and a caption that says what the intervals are."""
    body = [line for table in report.results for line in _rows(table, named=len(report.results) > 1)]
    head = report.results[0]
    kept = _columns(head)
    lines = [
        f"% {author}. In the preamble: \\usepackage{{booktabs, amssymb, graphicx}}",
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        f"\\caption{{{escape(f'{report.title}. {report.caption}')}}}",
        r"\label{tab:mhsh}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        f"\\begin{{tabular}}{{{''.join('r' if head.columns[place].numeric else 'l' for place in kept)}}}",
        r"\toprule",
        " & ".join(escape(head.columns[place].name) for place in kept) + r" \\",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return ("\n".join(lines) + "\n").encode()


def escape(text: str) -> str:
    """The text on one line, with nothing that LaTeX would interpret."""
    return "".join(_SPECIAL.get(character, character) for character in sanitize(text))


def _columns(table: Table) -> list[int]:
    return [place for place, each in enumerate(table.columns) if each.name != CAUTION]


def _rows(table: Table, named: bool) -> list[str]:
    kept = _columns(table)
    name = [f"\\multicolumn{{{len(kept)}}}{{l}}{{{escape(table.section)}}} \\\\"] * named
    return [r"\midrule", *name, *_cells(table, kept)]


def _cells(table: Table, kept: list[int]) -> list[str]:
    """Of the numbers the differences alone have their intervals: a column of text holds no more."""
    rows = [[row.full[place] for place in kept] for row in table.rows]
    words = [
        [
            cell.words if place in table.forests else f"{cell.text} {cell.mark}".rstrip()
            for place, cell in zip(kept, row, strict=True)
        ]
        for row in rows
    ]
    return [" & ".join(map(escape, row)) + r" \\" for row in words]
