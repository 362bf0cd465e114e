"""The pictures of docs/gallery.md: what `mhsh compare` makes of runs that docs/study keeps.

python -m website.gallery docs/gallery

chromium photographs the page, and pdftoppm the paper's figure.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from PIL import Image

KEPT = Path(__file__).resolve().parents[1] / "docs" / "study" / "runs" / "decoder.tar.xz"
COMPARE = "compare decoder --over=lr --choosing-seeds=2 --paper"  # as docs/gallery.md has it
FIGURES = ("report.svg", "report_1.svg", "report_forest.svg", "report_rates.svg")
COLOURS = 256  # of the two photographs, which keeps them small


def write_pictures(to: Path) -> None:
    """Writes the figures and the two photographs into the folder `to`."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with tarfile.open(KEPT) as kept:
            kept.extractall(work, filter="data")
        subprocess.run([sys.executable, "-m", "mhsh", *COMPARE.split()], cwd=work, check=True)
        for name in FIGURES:
            (to / name).write_bytes((work / name).read_bytes())
        page = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1400,900", "--virtual-time-budget=4000"]
        subprocess.run(["chromium", *page, "--screenshot=page.png", f"file://{work / 'report.html'}"], cwd=work, check=True)
        subprocess.run(["pdftoppm", "-r", "150", "-png", "-singlefile", "report.pdf", "paper"], cwd=work, check=True)
        for name in ("page.png", "paper.png"):
            Image.open(work / name).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(to / name, optimize=True)


if __name__ == "__main__":
    write_pictures(Path(sys.argv[1]))
