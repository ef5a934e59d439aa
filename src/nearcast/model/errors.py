"""Every error that Nearcast raises on purpose.

    NearcastError
    ├── MisuseError (ValueError)          the caller's mistake
    │   ├── ExpressionError               an invalid `where` text; has the position
    │   ├── ShapeError                    an invalid shape
    │   ├── UnknownNameError              an attribute, category, rank … that does not exist
    │   ├── OutOfRangeError               a value outside its attribute's range, NaN, infinity
    │   ├── LimitError                    too long, too deep, too many
    │   ├── KeyInUseError                 a key that already exists
    │   ├── KeyMissingError               a key that does not exist
    │   └── ConfigurationError            `nearcast.toml`; has file, key and line
    ├── PeerProtocolError                 the other end of a connection broke its protocol
    ├── FileFormatError                   a file that is damaged, cut short or of another version
    └── EnvironmentProblem                the machine lacks something: Java, a port, disk space

Anything else that escapes from a core is a bug. A call that raises has changed nothing.

Each message names what was found, where, what was expected, and what to do.
"""

from __future__ import annotations


class NearcastError(Exception):
    """The base: what was found, where, what was expected instead, and what to do.

    >>> print(NearcastError("-3", where="$top", expected="a whole number from 1"))
    $top: found -3; expected a whole number from 1
    """

    def __init__(self, found: str, *, where: str = "", expected: str = "", todo: str = "") -> None:
        self.found = found
        self.where = where
        self.expected = expected
        self.todo = todo
        super().__init__(found, where, expected, todo)

    def __str__(self) -> str:
        """Return one line for people."""
        prefix = f"{self.where}: " if self.where else ""
        if self.expected:
            text = f"{prefix}found {self.found}; expected {self.expected}"
        else:
            text = f"{prefix}{self.found}"
        return f"{text}. {self.todo}" if self.todo else text

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs, keyword arguments and further attributes included."""
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[NearcastError], args: tuple[str, ...], state: dict[str, object]) -> object:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class MisuseError(NearcastError, ValueError):
    """The caller's mistake."""


class ExpressionError(MisuseError):
    """An invalid `where` text; `position` counts characters from 0."""

    def __init__(
        self, found: str, *, position: int, where: str = "", expected: str = "", todo: str = ""
    ) -> None:
        self.position = position
        super().__init__(found, where=where or f"position {position}", expected=expected, todo=todo)


class ShapeError(MisuseError):
    """An invalid shape."""


class UnknownNameError(MisuseError):
    """A name (attribute, category, rank, method) that does not exist."""


class OutOfRangeError(MisuseError):
    """A value outside what is allowed; NaN and infinity included."""


class LimitError(MisuseError):
    """Too long, too deep, too many."""


class KeyInUseError(MisuseError):
    """A key that already exists."""


class KeyMissingError(MisuseError):
    """A key that does not exist."""


class ConfigurationError(MisuseError):
    """A mistake in `nearcast.toml`; `line` counts from 1 and is None when unknown."""

    def __init__(
        self,
        found: str,
        *,
        where: str = "",
        expected: str = "",
        todo: str = "",
        line: int | None = None,
    ) -> None:
        self.line = line
        super().__init__(found, where=where, expected=expected, todo=todo)


class PeerProtocolError(NearcastError):
    """The other end of a connection broke its protocol."""


class FileFormatError(NearcastError):
    """A file that is damaged, cut short, or of another version."""


class EnvironmentProblem(NearcastError):  # noqa: N818 - it names a state of the machine
    """The machine lacks something: Java, a free port, disk space."""
