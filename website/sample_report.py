"""The sample report: what `mhsh compare` makes of the runs in website/sample_runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# Trained at commit e45db5a, which did not yet record the code, the numeric settings and the
# checksum of validation's batches. Those were computed afterwards, from that commit, its data and
# jax 0.10.2.
RUNS = Path(__file__).parent / "sample_runs"
MODELS = ("6l4h_post_ln", "24l1h_post_ln", "24l1h_admin")  # the first is what the others are set against

_PAGE = """# A sample report

`mhsh compare` wrote this report when the site was built, from nine runs of the config
`quickstart`: three models of 24 heads, three seeds each, 300 steps on two CPU cores. The report is
one file and opens without a network.

[Open the report](sample/report.html){{ .md-button .md-button--primary }}

Beside it lie the curves as a picture, and the numbers as JSON and CSV:

![training and validation loss of the nine runs](sample/report.svg)

In the terminal it prints:

```text
{printed}
```

[The quickstart](quickstart.md) makes such a report on your machine.
"""


def write_sample_report(to: Path) -> str:
    """Writes the report into the folder `to`; returns the page that leads to it."""
    to.mkdir()
    runs = [path.name for model in MODELS for path in sorted(RUNS.glob(f"{model}-*"))]
    command = [sys.executable, "-m", "mhsh", "compare", *runs, f"--out={(to / 'report.html').resolve()}"]
    compare = subprocess.run(command, cwd=RUNS, stdout=subprocess.PIPE, text=True, check=True)
    return _PAGE.format(printed=compare.stdout.replace(f"{to.resolve()}/", "").rstrip())
