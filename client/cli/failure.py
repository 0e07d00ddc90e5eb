"""How a command ends when it does not succeed."""

from __future__ import annotations


class CommandError(Exception):
    """An expected failure: its text goes to stderr as one line, without a traceback, and the exit status is 1."""


class Interrupted(CommandError):
    """Ctrl-C or SIGTERM ended the command before it was done."""
