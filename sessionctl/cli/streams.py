"""How stdout and stderr write what their encoding lacks."""

from __future__ import annotations

import codecs

SYMBOLS = str.maketrans("→←…⚠✗✓–·─│█▉▊▋▌▍▎▏╭╮╰╯", "><~!x+-|-|######==++++")
"""What the symbols of our own output become where the encoding has only ASCII: as wide as they are."""


def _lacking(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(SYMBOLS)
    return text.encode("ascii", "backslashreplace").decode(), error.end


LACKING = "sessionctl"
"""The way of writing what the output's encoding lacks: a plainer symbol, else an escape. Output never fails for it."""
codecs.register_error(LACKING, _lacking)
