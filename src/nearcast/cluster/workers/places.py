"""Where the session of an identifier is, and what workers are called."""

from __future__ import annotations

from hashlib import blake2b


def worker_name(node: str, number: int) -> str:
    """Return the name of a worker, as links, logs and tables have it; the first has number 0.

    >>> worker_name("berlin", 0)
    'berlin.1'
    """
    return f"{node}.{number + 1}"


def place_of(identifier: str, count: int) -> int:
    """Return which of `count` workers has the session of this identifier. O(its length).

    The user's name behind `@`, where users are kept apart, makes no difference: whoever accepts a
    connection knows the client identifier, and not yet the user.
    """
    own = identifier.partition("@")[0].encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(own, digest_size=8).digest(), "big") % count
