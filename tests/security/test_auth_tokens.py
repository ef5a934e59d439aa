"""Tokens: which are accepted, and that everything else is refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from pydantic import ValidationError
from tests.security.hooks import serving
from tests.security.token_keys import EC, jwk, key_file

from nearcast.config import JwtSection
from nearcast.model.errors import EnvironmentProblem, FileFormatError
from nearcast.server.auth import tokens as tokens_module
from nearcast.server.auth.key_sets import KeySet
from nearcast.server.auth.logins import LoginAnswer, LoginRefusedError, LoginRequest
from nearcast.server.auth.tokens import TokenLogins

RSA = rsa.generate_private_key(65_537, 2048)
OTHER_RSA = rsa.generate_private_key(65_537, 2048)
ED = ed25519.Ed25519PrivateKey.generate()
SECRET = "s" * 40
KEYS: dict[str, Any] = {"RS256": RSA, "ES256": EC, "EdDSA": ED}


def login(token: str | bytes, user: str | None = None, client: str = "c1") -> LoginRequest:
    password = token.encode() if isinstance(token, str) else token
    return LoginRequest(client, user, password, "10.0.0.7", "0")


def claims(**more: Any) -> dict[str, Any]:
    return {"sub": "ann", "exp": time.time() + 600, **more}


@pytest.fixture
def all_keys(tmp_path: Path) -> str:
    return key_file(tmp_path / "keys.json", *(jwk(key, name) for name, key in KEYS.items()))


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_token_of_each_kind_of_key_is_a_login(all_keys: str, algorithm: str):
    logins = TokenLogins(JwtSection(keys=all_keys))
    token = jwt.encode(claims(), KEYS[algorithm], algorithm, headers={"kid": algorithm})

    answer = logins.check(login(token))
    assert answer is not None
    assert answer.user == "ann"
    assert 600 < answer.lasts_s < 640


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_pem_file_is_a_key(tmp_path: Path, algorithm: str):
    pem = (
        KEYS[algorithm]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "key.pem").write_bytes(pem)
    logins = TokenLogins(JwtSection(keys=str(tmp_path / "key.pem")))

    assert logins.check(login(jwt.encode(claims(), KEYS[algorithm], algorithm))) is not None


def test_a_secret_is_a_key_of_its_own_kind_only(tmp_path: Path):
    (tmp_path / "secret").write_text(SECRET + "\n")
    section = JwtSection(keys=str(tmp_path / "secret"), algorithms=["HS256"])

    assert TokenLogins(section).check(login(jwt.encode(claims(), SECRET, "HS256"))) is not None
    with pytest.raises(FileFormatError, match="no key set"):
        KeySet(JwtSection(keys=str(tmp_path / "secret")))
    (tmp_path / "secret").write_text("short")
    with pytest.raises(FileFormatError, match="32 bytes"):
        KeySet(section)


def test_public_keys_and_secrets_exclude_each_other():
    with pytest.raises(ValidationError, match="used as a secret"):
        JwtSection(keys="x", algorithms=["HS256", "RS256"])


def forged(token: str, **header: Any) -> str:
    """Return a token with another header and no signature."""
    import base64

    head = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    return f"{head}.{token.split('.')[1]}."


def hmac_by_public_key(key: Any) -> str:
    import base64
    import hashlib
    import hmac

    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    parts = [{"alg": "HS256", "kid": "RS256"}, claims()]
    body = ".".join(
        base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts
    )
    signature = hmac.digest(pem, body.encode(), hashlib.sha256)
    return body + "." + base64.urlsafe_b64encode(signature).decode().rstrip("=")


def signed(key: Any = RSA, key_id: str = "RS256", **more: Any) -> str:
    return jwt.encode(claims(**more), key, "RS256", headers={"kid": key_id})


def bad_tokens() -> list[tuple[str, str]]:
    """Return tokens as they are now, and why each is refused."""
    return [
        (signed(OTHER_RSA), "signature"),
        (signed(key_id="other"), "unknown key"),
        (signed(exp=time.time() - 60), "expired"),
        (signed(exp="soon"), "exp|Expiration"),
        (signed(exp=float("nan")), "exp|Expiration"),
        (signed(exp=float("inf")), "exp|Expiration"),
        (jwt.encode({"sub": "ann"}, RSA, "RS256", headers={"kid": "RS256"}), "exp"),
        (signed(nbf=time.time() + 6_000), "future"),
        (signed(iat=time.time() + 6_000), "future"),
        (signed(sub=""), "claim sub"),
        (signed(sub=7), "claim sub|Subject"),
        (forged(signed(), alg="none"), "algorithm"),
        (forged(signed(), alg="RS256", kid="RS256"), "signature|none"),
        (hmac_by_public_key(RSA), "algorithm"),
        (jwt.encode(claims(), RSA, "RS512", headers={"kid": "RS256"}), "algorithm"),
        (jwt.encode(claims(), RSA, "RS256", headers={"kid": "RS256", "crit": ["x"]}), "crit|Unsup"),
    ]


@pytest.mark.parametrize("number", range(16))
def test_a_bad_token_is_refused(all_keys: str, number: int):
    token, why = bad_tokens()[number]
    with pytest.raises(LoginRefusedError, match=why):
        TokenLogins(JwtSection(keys=all_keys)).check(login(token))


def test_a_password_that_is_no_token_is_for_others(all_keys: str):
    logins = TokenLogins(JwtSection(keys=all_keys))
    for password in (b"secret", b"a.b", b"", b"\xff.\xff.\xff", b"a b.c.d"):
        assert logins.check(login(password)) is None


def test_a_token_says_who_which_client_and_what_for(all_keys: str):
    section = JwtSection(
        keys=all_keys, issuer="i", audience="a", client="cid", user="name", rules="acl"
    )
    logins = TokenLogins(section)
    rules = [{"topic": "fleet/%u/#"}]
    good: dict[str, Any] = {"iss": "i", "aud": ["a", "b"], "cid": "c1", "name": "ann", "acl": rules}

    answer = logins.check(login(signed(**good)))
    assert isinstance(answer, LoginAnswer)
    assert (answer.user, answer.rules) == ("ann", rules)
    assert logins.check(login(signed(**good), user="ann")) is not None
    for bad in ({"iss": "x"}, {"aud": "x"}, {"cid": "c2"}, {"name": None}, {"acl": "all"}):
        with pytest.raises(LoginRefusedError):
            logins.check(login(signed(**{**good, **bad})))
    with pytest.raises(LoginRefusedError, match="another user"):
        logins.check(login(signed(**good), user="eve"))


@pytest.mark.parametrize(("skew_s", "is_accepted"), [(29, True), (31, False)])
def test_clocks_may_be_apart_by_the_leeway(all_keys: str, skew_s: int, is_accepted: bool):
    now_s = time.time()
    logins = TokenLogins(JwtSection(keys=all_keys), now_s=lambda: now_s)
    late = signed(exp=int(now_s) - skew_s + 1, iat=now_s - 900)
    early = signed(nbf=now_s + skew_s, iat=now_s + skew_s)
    for token in (late, early):
        if is_accepted:
            assert logins.check(login(token)) is not None
        else:
            with pytest.raises(LoginRefusedError):
                logins.check(login(token))


# --- where the keys come from -------------------------------------------------------------------


def test_a_key_file_that_cannot_be_read_is_a_mistake_at_once(tmp_path: Path):
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        KeySet(JwtSection(keys=str(tmp_path / "none.json")))
    (tmp_path / "bad.json").write_text("{nonsense")
    with pytest.raises(FileFormatError):
        KeySet(JwtSection(keys=str(tmp_path / "bad.json")))


def test_a_private_key_for_encryption_or_of_an_unknown_kind_is_no_key(tmp_path: Path):
    entries = [jwk(RSA, "e", use="enc"), {"kty": "new", "kid": "n"}, jwk(EC, "good", use="sig")]
    keys = KeySet(JwtSection(keys=key_file(tmp_path / "k", *entries)))

    assert [one.key_id for one in keys.find(None)] == ["good"]


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_keys_from_a_url_are_kept_rotated_and_trusted_for_a_while():
    clock, entries = Clock(), [jwk(RSA, "one")]
    with serving(lambda _: (200, json.dumps({"keys": entries}))) as (url, asked):
        keys = KeySet(JwtSection(keys=url, refresh=300.0, stale=3_600.0), clock)
        logins = TokenLogins(JwtSection(keys=url), keys)
        for _ in range(5):
            assert logins.check(login(signed(key_id="one"))) is not None
        assert len(asked) == 1

        entries[:] = [jwk(OTHER_RSA, "two")]  # rotated: the new key counts at once
        clock.now_s += 11
        assert logins.check(login(signed(OTHER_RSA, "two"))) is not None
        assert len(asked) == 2
        with pytest.raises(LoginRefusedError, match="unknown key"):
            logins.check(login(signed(key_id="one")))  # and the old one no more

        for _ in range(20):  # made up identifiers do not make the broker ask each time
            with pytest.raises(LoginRefusedError):
                logins.check(login(signed(key_id="made-up")))
        assert len(asked) == 2
    clock.now_s += 3_000  # the URL is down now, the keys are not too old
    assert logins.check(login(signed(OTHER_RSA, "two"))) is not None
    clock.now_s += 1_000
    with pytest.raises(LoginRefusedError, match="unknown key"):
        logins.check(login(signed(OTHER_RSA, "two")))


def test_a_url_that_hangs_holds_up_nobody_whose_key_is_known():
    """Whoever makes up key identifiers made all logins by token wait for the URL."""
    is_asked, may_answer, good = threading.Event(), threading.Event(), [jwk(RSA, "one")]

    def answer(_: object) -> tuple[int, str]:
        if good:
            return 200, json.dumps({"keys": [good.pop()]})
        is_asked.set()
        may_answer.wait(30)
        return 500, ""

    with serving(answer) as (url, _):
        clock = Clock()
        logins = TokenLogins(JwtSection(keys=url), KeySet(JwtSection(keys=url), clock))
        assert logins.check(login(signed(key_id="one"))) is not None
        clock.now_s += 60
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(logins.check, login(signed(key_id="made-up")))
            assert is_asked.wait(30)
            assert logins.check(login(signed(key_id="one"))) is not None
            clock.now_s += 600  # they should be read again, and somebody does so
            assert logins.check(login(signed(key_id="one"))) is not None
            assert not other.done()
            may_answer.set()
            with pytest.raises(LoginRefusedError, match="unknown key"):
                other.result(30)


def test_without_any_answer_of_the_url_nobody_logs_in():
    logins = TokenLogins(JwtSection(keys="http://127.0.0.1:9/keys"))
    with pytest.raises(LoginRefusedError, match="unknown key"):
        logins.check(login(signed()))


@pytest.mark.parametrize("answer", [(404, "{}"), (200, "no json"), (200, '{"keys": 7}'), (302, "")])
def test_an_answer_without_keys_is_no_answer(answer: tuple[int, str]):
    with serving(lambda _: answer) as (url, _):
        logins = TokenLogins(JwtSection(keys=url))
        with pytest.raises(LoginRefusedError, match="unknown key"):
            logins.check(login(signed()))


def test_without_the_libraries_the_message_says_what_to_install(
    all_keys: str, monkeypatch: pytest.MonkeyPatch
):
    find: Callable[[str], object] = lambda name: None if name == "jwt" else object()  # noqa: E731
    monkeypatch.setattr(tokens_module, "find_spec", find)
    with pytest.raises(EnvironmentProblem, match=r"nearcast\[jwt\]"):
        TokenLogins(JwtSection(keys=all_keys))
