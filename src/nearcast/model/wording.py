"""Values in error messages: short, quoted, and with a suggestion for unknown names."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN = 40
_CANDIDATES = 2_000


def shown(value: object) -> str:
    """Return `value` as code, cut to a length that fits a reason string.

    >>> shown("food")
    "'food'"
    """
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else repr(value[:_SHOWN]) + "…"
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out whole numbers of over 4,300 digits
        return "a whole number of thousands of digits"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that proposes the nearest known name, or nothing.

    >>> did_you_mean("prize", ["price", "age"])
    'Did you mean price?'
    """
    import difflib  # only errors pay for the import

    candidates = [name for name, _ in zip(known, range(_CANDIDATES), strict=False)]
    folded = {name.casefold(): name for name in reversed(candidates)}
    close = difflib.get_close_matches(word[:_SHOWN].casefold(), folded, n=1)
    return f"Did you mean {folded[close[0]]}?" if close else ""


def listed(names: Iterable[str], most: int = 8) -> str:
    """Return the names in a row, the first few if there are many.

    >>> listed(["a", "b", "c"], most=2)
    'a, b, …'
    """
    first = [shown(name)[1:-1] for name, _ in zip(names, range(most + 1), strict=False)]
    return ", ".join(first[:most]) + (", …" if len(first) > most else "")
