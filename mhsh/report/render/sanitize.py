"""Text from files, made safe to show."""

from __future__ import annotations


def sanitize(text: str) -> str:
    """`text` on one line. U+FFFD replaces control characters (escape sequences), direction
    overrides and undecodable bytes.
    """
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
