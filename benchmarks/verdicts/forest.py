"""One forest plot of the study: one head a layer minus its shallow twin, by tokens a parameter.

  python -m benchmarks.verdicts.forest runs/study/published docs/study/forest.png

Reads the report.json of every stage whose runs are kept, as `bash launch/study page` leaves them:
each stage is judged alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from mhsh.report.build import PER_PARAMETER
from mhsh.report.figure_files import figure_bytes, figure_style
from mhsh.report.figures import forest_figure
from mhsh.report.report import MARK, Column, Report, Row, Table, TableCell

# By stage, its shape of one head a layer, and what the picture calls the stage.
STAGES = {
    "trained": ("24x1 admin", "Admin, AdamW"),
    "trained_muon": ("24x1 admin", "Admin, Muon"),
    "decoder": ("24x1 pre_ln", "decoder, Muon"),
    "decided": ("24x1 pre_ln", "decoder, finer rates"),
    "wider": ("24x1 pre_ln", "decoder, twice as wide"),
    "books": ("24x1 pre_ln", "decoder, Muon, novels"),
    "multi30k_whole": ("16-16x1 admin", "translation"),
}


def main() -> None:
    """Writes the picture."""
    published, picture = map(Path, sys.argv[1:])
    found = sorted((each for stage in STAGES for each in differences(published / stage, *STAGES[stage])), key=lambda each: each[:2])
    rows = tuple(Row((f"{tokens:.2g} tokens: {name}", cell)) for tokens, name, cell in found)
    with figure_style():
        figure = forest_figure(Report("", tables=(Table("", (Column("stage"), Column("difference", forest=True)), rows),)))
        picture.write_bytes(figure_bytes(figure, "png", MARK))


def differences(folder: Path, shape: str, name: str) -> Iterator[tuple[float, str, TableCell]]:
    """For each length of a stage: the tokens a parameter, the name of the stage, the difference."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))["report"]
    for table in report["tables"]:
        place = next((place for place, column in enumerate(table["columns"]) if column["forest"]), None)
        for row in table["rows"] if place is not None else ():
            if row["cells"][0] == shape:
                run = report["curves"]["runs"][report["curves"]["groups"][row["group"]]["runs"][0]]
                x = run["curves"]["train"]["rows"]["x"]
                each = x[PER_PARAMETER]
                yield (each * x["step"][-1] if isinstance(each, float) else each[-1]), name, TableCell(**row["cells"][place])


if __name__ == "__main__":
    main()
