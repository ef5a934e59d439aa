"""Logins by JSON Web Tokens (RFC 7519), sent as the password of CONNECT."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from nearcast.config import JwtSection
from nearcast.model.errors import EnvironmentProblem
from nearcast.server.auth.key_sets import KeySet
from nearcast.server.auth.logins import LoginAnswer, LoginRefusedError, LoginRequest

_TOKEN = re.compile(rb"[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]*")
_LARGEST = 16_384


class TokenLogins:
    """A login plugin for tokens. A password that has not the form of a token is for others.

    A token must be signed by a known key with an accepted algorithm, and say when it expires.
    """

    def __init__(
        self,
        section: JwtSection,
        keys: KeySet | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        if find_spec("jwt") is None or find_spec("cryptography") is None:
            raise EnvironmentProblem(
                "tokens need PyJWT and cryptography, which are not installed",
                where="[auth.jwt]",
                todo="pip install 'nearcast[jwt]'",
            )
        self.section = section
        self.keys = keys or KeySet(section)
        self._now_s = now_s

    def check(self, request: LoginRequest) -> LoginAnswer | None:
        """Return the user, the rules and the time that a token grants."""
        token = request.password or b""
        if not _TOKEN.fullmatch(token):
            return None
        if len(token) > _LARGEST:
            raise LoginRefusedError("a token of more than 16 KiB")
        claims = self._claims(token.decode())
        section = self.section
        user = claims.get(section.user)
        if not isinstance(user, str) or not user:
            raise LoginRefusedError(f"a token without the claim {section.user}")
        if request.user_name and request.user_name != user:
            raise LoginRefusedError("a token of another user")
        if section.client is not None and claims.get(section.client) != request.client_id:
            raise LoginRefusedError("a token of another client identifier")
        return LoginAnswer(user, self._rules(claims), self._lasts_s(claims))

    def _claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token that is valid now."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            if "crit" in header:
                raise LoginRefusedError("a token with extensions (crit)")
            if header.get("alg") not in self.section.algorithms:
                raise LoginRefusedError("a token with an algorithm that is not accepted")
            keys = self.keys.find(header.get("kid"))
        except jwt.PyJWTError as problem:
            raise LoginRefusedError(f"a token that is none ({problem})") from None
        why = "its signature is wrong"
        for key in keys:
            try:
                claims = jwt.decode(token, key, algorithms=[*self.section.algorithms], **_UNTIMED)
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError):
                continue
            except jwt.PyJWTError as problem:
                why = str(problem)
                continue
            self._check_claims(claims)
            return claims
        raise LoginRefusedError(f"a token that is refused ({why})")

    def _check_claims(self, claims: dict[str, Any]) -> None:
        """Refuse claims that are not in force now, or not for us (RFC 7519, 4.1)."""
        section, now_s = self.section, self._now_s()
        times = {name: claims.get(name) for name in ("exp", "nbf", "iat")}
        for name, value in times.items():
            if not _is_number(value) and (value is not None or name == "exp"):
                raise LoginRefusedError(f"a token whose {name} is {value!r}")
        if float(times["exp"] or 0) + section.leeway <= now_s:
            raise LoginRefusedError("a token that has expired")
        if any(float(times[name] or 0) - section.leeway > now_s for name in ("nbf", "iat")):
            raise LoginRefusedError("a token of the future")
        if section.issuer is not None and claims.get("iss") != section.issuer:
            raise LoginRefusedError("a token of another issuer")
        audience = claims.get("aud")
        if section.audience is not None:
            audiences = audience if isinstance(audience, list) else [audience]
            if section.audience not in audiences:
                raise LoginRefusedError("a token for another audience")

    def _rules(self, claims: dict[str, Any]) -> list[dict[str, object]] | None:
        name = self.section.rules
        if name is None:
            return None
        rules = claims.get(name)
        if not isinstance(rules, list) or not all(isinstance(one, dict) for one in rules):
            raise LoginRefusedError(f"a token without a list of rules as claim {name}")
        return rules

    def _lasts_s(self, claims: dict[str, Any]) -> float:
        return max(1.0, float(claims["exp"]) + self.section.leeway - self._now_s())


def _is_number(value: object) -> bool:
    """Return whether a claim is a number; JSON as Python reads it has NaN, too."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value)


_UNTIMED: dict[str, Any] = {
    "options": {
        "verify_exp": False,  # `_check_claims` does: by a clock that a test can set
        "verify_nbf": False,
        "verify_iat": False,
        "verify_aud": False,
        "verify_iss": False,
    }
}
