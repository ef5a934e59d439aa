"""Names in client certificates, and the users that they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from nearcast.config import CertificateSection

_KINDS = {"dns": "DNS", "uri": "URI", "email": "email"}
Names = tuple[tuple[str, str], ...]


def names_in(certificate: dict[str, Any] | None) -> Names:
    """Return the names of a certificate as `ssl` shows it: (cn, dns, uri or email; the name).

    >>> names_in({"subject": ((("commonName", "ann"),),), "subjectAltName": (("DNS", "a.org"),)})
    (('cn', 'ann'), ('dns', 'a.org'))
    """
    return tuple(_names(certificate or {}))


def _names(certificate: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                yield "cn", str(value)
    for kind, value in certificate.get("subjectAltName", ()):
        for name, of_ssl in _KINDS.items():
            if kind == of_ssl:
                yield name, str(value)


class CertificateUsers:
    """Finds the user of a certificate: that of the first section that fits one of its names.

    Without sections the common name is the user. Complexity: O(sections * names).
    """

    def __init__(self, sections: Iterable[CertificateSection]) -> None:
        self._sections = [(one, _pattern(one.name)) for one in sections]

    def find(self, names: Names) -> str | None:
        """Return the user; None if no section fits."""
        if not self._sections:
            return next((name for kind, name in names if kind == "cn"), None)
        for section, pattern in self._sections:
            for kind, name in names:
                match = pattern.fullmatch(name) if kind == section.field else None
                if match is not None:
                    return _user(section.user, name, match.groups())
        return None


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(re.escape(part) for part in text.split("*")), re.DOTALL)


def _user(form: str, name: str, stars: tuple[str, ...]) -> str | None:
    """Return the user's name, with %n and %1 to %9 filled in, once; None if it is empty."""

    def value(mark: re.Match[str]) -> str:
        sign = mark[1]
        if sign == "n":
            return name
        return stars[int(sign) - 1] if int(sign) <= len(stars) else ""

    return re.sub(r"%([n1-9])", value, form) or None
