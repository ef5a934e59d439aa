"""Words of 64 bits: what kernels do with them, in Python and as processor instructions.

A word is an int64. Python's numbers do not end at 64 bits; so whatever may set the highest bit
of a word goes through here. In Python the state is a `memoryview`, whose numbers are Python's.

Read next: codec.py.
"""

from __future__ import annotations

from typing import Any

from nearcast.kernels import instruction

_COMPILED = "nearcast.ordering.bits_compiled"
_ALL = 0xFFFFFFFFFFFFFFFF
_TOP = 63


@instruction(_COMPILED)
def lowest_one(word: int) -> int:
    """Return the position of the lowest one of a word that is not zero."""
    return (word & -word).bit_length() - 1


@instruction(_COMPILED)
def ones(word: int) -> int:
    """Return how many ones a word has."""
    return (word & _ALL).bit_count()


@instruction(_COMPILED)
def highest_one(word: int) -> int:
    """Return the position of the highest one of a word that is not zero."""
    return (word & _ALL).bit_length() - 1


@instruction(_COMPILED)
def bit_at(number: int) -> int:
    """Return the word whose only one is at a position below 64."""
    return 1 << number if number < _TOP else -1 << _TOP


@instruction(_COMPILED)
def without_lowest(word: int) -> int:
    """Return a word that is not zero, without its lowest one."""
    return word & (word - 1) if word != -1 << _TOP else 0


@instruction(_COMPILED)
def load_word(data: Any, at: int) -> int:
    """Return the eight bytes at a position, lowest first; they must be there."""
    return int.from_bytes(data[at : at + 8], "little", signed=True)


@instruction(_COMPILED)
def store_word(data: Any, at: int, word: int) -> None:
    """Write eight bytes at a position, lowest first; there must be room."""
    data[at : at + 8] = word.to_bytes(8, "little", signed=True)
