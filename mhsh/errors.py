"""The one exception that is meant for people: a mistake the user can mend."""

from __future__ import annotations


class UserError(Exception):
    """What is wrong, where, and what to do, in one line. `mhsh` prints it without a traceback and
    exits with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
