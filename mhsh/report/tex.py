"""The table of results for a paper: report.tex, for `\\input` in a document that has `booktabs`."""

from __future__ import annotations

from mhsh.report.report import CAUTION, Report
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
    head = report.results[0]
    places = [place for place, column in enumerate(head.columns) if column.name != CAUTION]
    body = []
    for table in report.results:
        body.append(r"\midrule")
        if len(report.results) > 1:
            body.append(f"\\multicolumn{{{len(places)}}}{{l}}{{{escape(table.section)}}} \\\\")
        for cells in ([row.full_cells[place] for place in places] for row in table.rows):
            # Of the numbers the differences alone have intervals: a column of text holds no more.
            words = [
                cell.words if place in table.forests else f"{cell.text} {cell.mark}".rstrip()
                for place, cell in zip(places, cells, strict=True)
            ]
            body.append(" & ".join(map(escape, words)) + r" \\")
    lines = [
        f"% {author}. In the preamble: \\usepackage{{booktabs, amssymb, graphicx}}",
        r"\begin{table}",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        f"\\caption{{{escape(f'{report.title}. {report.caption}')}}}",
        r"\label{tab:mhsh}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        f"\\begin{{tabular}}{{{''.join('r' if head.columns[place].numeric else 'l' for place in places)}}}",
        r"\toprule",
        " & ".join(escape(head.columns[place].name) for place in places) + r" \\",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return ("\n".join(lines) + "\n").encode()


def escape(text: str) -> str:
    """The text on one line, with nothing that LaTeX would interpret."""
    return "".join(_SPECIAL.get(character, character) for character in sanitize(text))
