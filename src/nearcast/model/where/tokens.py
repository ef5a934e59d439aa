"""The tokens of the `where` language, and the checks on raw text that come first."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from nearcast.model.errors import ExpressionError, LimitError
from nearcast.model.quantities import NUMBER_PATTERN
from nearcast.model.where.names import KEYWORDS, WORD_PATTERN
from nearcast.model.wording import shown

LENGTH_LIMIT = 65_536
"""The longest text, in bytes of UTF-8: as long as an MQTT string."""


class TokenKind(Enum):
    """The kind of a token, in the words of an error message."""

    NUMBER = "a number"
    WORD = "a word"
    STRING = "a quoted word"
    KEYWORD = "a keyword"
    COMPARISON = "a comparison"
    SIGN = "a sign"
    END = "the end"


class Token(NamedTuple):
    """A token: its kind, its text, and its position."""

    kind: TokenKind
    text: str  # keywords in small letters, strings without quotes and escapes, `==` as `=`
    position: int

    def __str__(self) -> str:
        return "the end" if self.kind is TokenKind.END else shown(self.text)


_TOKEN = re.compile(
    rf"""(?P<blank>\s+)
    |(?P<NUMBER>{NUMBER_PATTERN})(?!\w)
    |(?P<WORD>{WORD_PATTERN})
    |(?P<STRING>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<COMPARISON><=|>=|==|!=|<|>|=)
    |(?P<SIGN>\.\.|[(),;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_MEANING = {'"': '"', "'": "'", "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}


def checked_text(text: str | bytes, what: str) -> str:
    """Return the text if it is UTF-8 of acceptable length; the length is checked first."""
    if not isinstance(text, (str, bytes)):
        raise ExpressionError(shown(text), position=0, expected=f"{what} as text")
    if len(text) > LENGTH_LIMIT:
        raise _too_long(len(text), what)
    if isinstance(text, bytes):
        try:
            return text.decode()
        except UnicodeDecodeError as problem:
            found = f"the byte 0x{text[problem.start]:02x}"
            raise ExpressionError(found, position=problem.start, expected="UTF-8") from None
    try:
        encoded = text.encode()
    except UnicodeEncodeError as problem:
        found = f"a lone surrogate in {what}"
        raise ExpressionError(found, position=problem.start, expected="Unicode text") from None
    if len(encoded) > LENGTH_LIMIT:
        raise _too_long(len(encoded), what)
    return text


def _too_long(length: int, what: str) -> LimitError:
    return LimitError(f"{what} of {length:,} bytes", expected=f"at most {LENGTH_LIMIT:,}")


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text, the last of them END; O(length)."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _no_token(text, position)
        if match.lastgroup != "blank":
            tokens.append(_token(TokenKind[str(match.lastgroup)], match.group(), position))
        position = match.end()
    tokens.append(Token(TokenKind.END, "", len(text)))
    return tokens


def _token(kind: TokenKind, text: str, position: int) -> Token:
    if kind is TokenKind.STRING:
        return Token(kind, _unescaped(text[1:-1], position + 1), position)
    if kind is TokenKind.WORD and text.lower() in KEYWORDS:
        return Token(TokenKind.KEYWORD, text.lower(), position)
    return Token(kind, "=" if text == "==" else text, position)


def _unescaped(body: str, start: int) -> str:
    def meaning(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) == 5 and not 0xD800 <= int(code[1:], 16) <= 0xDFFF:
            return chr(int(code[1:], 16))
        if code in _MEANING:
            return _MEANING[code]
        raise ExpressionError(
            shown(match.group()),
            position=start + match.start(),
            expected=r"one of the escapes \" \' \\ \n \t \r \uXXXX",
        )

    return _ESCAPE.sub(meaning, body) if "\\" in body else body


def _no_token(text: str, position: int) -> ExpressionError:
    rest = text[position : position + 40]
    if rest[0] in "\"'":
        return ExpressionError(
            shown(rest), position=position, expected=f"a closing {rest[0]} somewhere after it"
        )
    if re.match(NUMBER_PATTERN, rest):
        return ExpressionError(
            shown(re.split(r"[^\w.+-]", rest)[0]),
            position=position,
            expected="a blank or a sign after the number",
            todo="A word that starts with a digit needs quotes.",
        )
    return ExpressionError(
        shown(rest[0]), position=position, expected="a condition such as price < 100"
    )
