"""Valid names of attributes, and bare words of the `where` language."""

from __future__ import annotations

import re

from nearcast.model.errors import MisuseError
from nearcast.model.wording import shown

KEYWORDS = frozenset({"and", "or", "not", "in"})
WORD_PATTERN = r"[^\W\d]\w*(?:-\w+)*"
_WORD = re.compile(WORD_PATTERN)


def is_bare_word(text: str) -> bool:
    """Return whether the `where` language reads `text` as one word, without quotes.

    >>> [is_bare_word(text) for text in ("food", "non-food", "and", "two words", "3d")]
    [True, True, False, False, False]
    """
    return _WORD.fullmatch(text) is not None and text.lower() not in KEYWORDS


def checked_name(name: object, where: str) -> str:
    """Return `name` if it is a valid attribute name, or raise MisuseError."""
    if isinstance(name, str) and is_bare_word(name) and is_text(name):
        return name
    raise MisuseError(
        shown(name),
        where=where,
        expected="a name of letters, digits, _ and inner -, starting with a letter or _",
        todo=f"The words {', '.join(sorted(KEYWORDS))} are taken.",
    )


def is_text(text: str) -> bool:
    """Return whether `text` can be written as UTF-8 (a lone surrogate cannot)."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
