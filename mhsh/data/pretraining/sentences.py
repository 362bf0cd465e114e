"""Documents into sentences, by the rules of Wikimedia's sentencex (a library that needs no model
and no download).
"""

from __future__ import annotations

import re

import sentencex

# sentencex 1.0.32 panics where a white space of several UTF-8 bytes (U+0085, U+00A0, U+2028 ...)
# follows an initial, so it is shown a plain space instead. One character stands for one, so the
# cuts it finds hold in the original too.
_WHITE_SPACE = {code: " " for code in range(0x10000) if chr(code).isspace()}


def sentences(document: str, language: str = "en") -> list[str]:
    """The sentences of a document of one paragraph a line; no sentence goes on past the end of its
    line.

    Nothing is lost: the sentences joined together are the document again, white space after a
    sentence is kept with it. (WordPiece drops it; bytes keep it.)

    Args:
      document: lines ended by "\\n" only.
      language: the ISO 639-1 code whose abbreviations are known to the splitter.
    """
    found: list[str] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", document):
        start = 0
        pieces = sentencex.segment(language, line.translate(_WHITE_SPACE))  # pyrefly: ignore[missing-attribute] (compiled)
        for piece in pieces:
            stop = start + len(piece)
            # White space alone is no sentence; it stays with the sentence before it or, at the very
            # start, after it.
            if found and (piece.isspace() or found[-1].isspace()):
                found[-1] += line[start:stop]
            else:
                found.append(line[start:stop])
            start = stop
    return found
