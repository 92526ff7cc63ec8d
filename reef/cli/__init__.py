"""The `reef` command. Everything but `serve` and `doctor` is a client of a running gateway, so it works from any machine with a token.

Imports stay inside the commands: `reef --help` answers in well under half a second.
"""

from reef.cli.app import main

__all__ = ["main"]
