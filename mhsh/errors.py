"""The one exception for users: an error that they can correct."""

from __future__ import annotations


class UserError(Exception):
    """Says in one line what is wrong, where, and what to do.

    `mhsh` prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
