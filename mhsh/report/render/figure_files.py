"""matplotlib's figures as bytes. Equal input gives equal bytes."""

from __future__ import annotations

import io
import warnings
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure


def figure_bytes(figure: Figure, kind: str, author: str) -> bytes:
    """A `png` or an `svg` that names its `author` and no date."""
    metadata: dict[str, Any] = {"Software": author} if kind == "png" else {"Creator": author, "Date": None}
    buffer = io.BytesIO()
    # svg.hashsalt: matplotlib's element names are random without it.
    with mpl.rc_context({"svg.hashsalt": author}), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; the run is named in full in the report.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()
