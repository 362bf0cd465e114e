"""Text that comes from files, made fit to be shown."""

from __future__ import annotations


def sanitize(text: str) -> str:
    """`text` on one line, with everything that a terminal or a page would obey rather than show
    replaced by U+FFFD.

    That is: control characters (escape sequences), direction overrides, undecodable bytes.
    """
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
