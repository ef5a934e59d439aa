"""Texts inside one level of a topic filter: `$where/price<100;kind=two%20words/shops/#`."""

from __future__ import annotations

import re

from nearcast.model.errors import ExpressionError
from nearcast.model.where.names import is_text
from nearcast.model.wording import shown

_SPECIAL = re.compile(r"[/+#%\s\x00-\x1f\x7f]")
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_STRAY = re.compile(r"%(?![0-9A-Fa-f]{2})")


def encode_level(text: str) -> str:
    """Return `text` with `/ + # %`, blanks and control characters percent-encoded; O(length).

    >>> encode_level("kind in (a/b)")
    'kind%20in%20(a%2Fb)'
    """
    if not is_text(text):
        raise ExpressionError("a lone surrogate", position=0, expected="text that UTF-8 can write")
    return _SPECIAL.sub(_percent, text)


def decode_level(level: str) -> str:
    """Return the text of a level; every %XX is decoded, special or not; O(length).

    Raises ExpressionError for a stray `%` and for bytes that are not UTF-8.

    >>> decode_level("kind%20in%20(a%2Fb)")
    'kind in (a/b)'
    """
    stray = _STRAY.search(level)
    if stray is not None:
        raise ExpressionError(
            shown(level[stray.start() : stray.start() + 3]),
            position=stray.start(),
            expected="% and two hexadecimal digits",
            todo="A % itself is written %25.",
        )
    return _ESCAPES.sub(_unpercent, level)


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode())


def _unpercent(match: re.Match[str]) -> str:
    try:
        return bytes.fromhex(match.group().replace("%", "")).decode()
    except UnicodeDecodeError:
        raise ExpressionError(
            shown(match.group()), position=match.start(), expected="percent-encoded UTF-8"
        ) from None
