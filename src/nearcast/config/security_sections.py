"""The sections about tokens, hooks, certificates, rates, the edge of listeners, and the audit."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nearcast.config.declaration import Section, setting
from nearcast.config.values import Bytes, FilePath, RateText, Seconds

_SYMMETRIC = {"HS256", "HS384", "HS512"}
# fmt: off
Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA",
]
# fmt: on


def _reloaded(default: Any, help_text: str, **more: Any) -> Any:
    return setting(default, help_text, reload=True, **more)


def _check_url(value: str | None) -> str | None:
    if value is not None and not value.startswith(("http://", "https://")):
        msg = f"'{value}' is no address such as https://auth.example.org/mqtt"
        raise ValueError(msg)
    return value


class JwtSection(Section):
    """Logins by JSON Web Tokens, sent as the password; needs pip install 'nearcast[jwt]'.

    Off without `keys`. A user name in CONNECT must be the token's user, or empty.
    """

    keys: str | None = setting(
        None,
        "key set (JWKS) as URL or file, PEM file, or file with the secret of HS256",
        example='"https://auth.example.org/jwks.json"',
    )
    algorithms: list[Algorithm] = setting(
        ["RS256", "ES256", "EdDSA"], "accepted; HS… and keys of pairs exclude each other"
    )
    issuer: str | None = setting(
        None, "what the claim iss must be", example='"https://auth.example.org"'
    )
    audience: str | None = setting(None, "what the claim aud must hold", example='"nearcast"')
    user: str = setting("sub", "claim that is the user's name", min_length=1)
    client: str | None = setting(
        None, "claim that the client identifier must equal", example='"client_id"'
    )
    rules: str | None = setting(
        None, "claim with access rules, which come before [[auth.rules]]", example='"acl"'
    )
    leeway: Annotated[Seconds, Field(le=300)] = setting(30.0, "how far clocks may be apart")
    refresh: Annotated[Seconds, Field(ge=1)] = setting(300.0, "how often the key set is read again")
    stale: Annotated[Seconds, Field(ge=1)] = setting(
        3_600.0, "a key set that could not be read for so long is trusted no more"
    )

    @field_validator("algorithms")
    @classmethod
    def _secrets_and_pairs_exclude_each_other(cls, value: list[str]) -> list[str]:
        if not value:
            msg = "no algorithm: no token could be accepted"
            raise ValueError(msg)
        if len({one in _SYMMETRIC for one in value}) > 1:
            msg = "HS… beside others: a public key could be used as a secret; choose one kind"
            raise ValueError(msg)
        return value

    @field_validator("keys")
    @classmethod
    def _keys_come_encrypted(cls, value: str | None) -> str | None:
        return _check_url(value) if value is not None and "://" in value else value


class HttpHookSection(Section):
    """Logins and rules by HTTP: a POST with JSON, answered with 200 and JSON; else refused.

    Off without `url`. See docs/security.md for both bodies.
    """

    url: str | None = setting(
        None, "address that is asked at each login", example='"https://auth.example.org/mqtt"'
    )
    timeout: Annotated[Seconds, Field(le=60)] = setting(
        2.0, "a hook that has not answered by then has refused"
    )
    cache: Annotated[float, Field(ge=0)] = setting(
        60.0, "seconds that an answer with success is used again for the same login; 0: never"
    )
    token_file: FilePath | None = setting(
        None, "file with a token, sent as Authorization: Bearer", example='"hook.token"'
    )
    authority: FilePath | None = setting(
        None, "trust servers signed by this certificate alone", example='"hook-ca.pem"'
    )

    _url = field_validator("url")(_check_url)


class CertificateSection(Section):
    """Which user a client certificate is: the first that fits; repeat the section for another one.

    Without any, the common name is the user's name. A certificate that fits none is no user's.
    """

    field: Literal["cn", "dns", "uri", "email"] = setting(
        "cn", "part of the certificate: cn (common name), or dns, uri, email of the SAN"
    )
    name: str = setting("*", "what it must be; * stands for any text", min_length=1)
    user: str = setting(
        "%n", "the user's name; %n is the certificate's, %1 what the first * stands for"
    )


class RatesSection(Section):
    """How often: 10/s, 600/min, 10/s burst 50. Without values nothing is counted.

    Beyond its rate of messages, a client is read more slowly; a connection is refused.
    """

    connections_address: RateText | None = _reloaded(
        None, "connections of one address (IPv6: of a /64 network)", example='"10/s burst 50"'
    )
    connections_user: RateText | None = _reloaded(
        None, "logins of one user", example='"5/s burst 20"'
    )
    connections_client: RateText | None = _reloaded(
        None, "logins of one client identifier of a user", example='"1/s burst 5"'
    )
    messages_address: RateText | None = _reloaded(
        None, "publications of one address", example='"5000/s"'
    )
    messages_user: RateText | None = _reloaded(
        None, "publications of one user, whatever its clients", example='"1000/s"'
    )
    messages_client: RateText | None = _reloaded(
        None, "publications of one connection", example='"100/s burst 500"'
    )
    guesses: int = _reloaded(
        5, "wrong passwords of a user from one address before it must wait; 0: no limit", ge=0
    )
    guess_wait: Seconds = _reloaded(
        300.0, "the longest wait after a wrong password; the first is 1 s, each doubles"
    )


class AuditSection(Section):
    """The audit log: logins, refusals, decisions of rules, actions of operators, as JSON lines."""

    file: FilePath | None = setting(
        None, "where it is written; without it there is none", example='"audit/audit.log"'
    )
    decisions: Literal["refused", "all"] = setting(
        "refused", "decisions of rules: refused, or all", reload=True
    )
    size: Bytes = setting(64 << 20, "a file of this size is closed, and a new one begun")
    age: Seconds = setting(86_400.0, "as is a file of this age")
    keep: int = setting(30, "closed files that are kept", ge=0)


class EdgeSettings(Section):
    """What a listener demands of connections before MQTT begins: the base of its section."""

    tls_minimum: Literal["1.2", "1.3"] = setting("1.2", "the oldest version of TLS")
    ciphers: str | None = setting(
        None, "ciphers of TLS 1.2, as OpenSSL names them", example='"ECDHE+AESGCM"'
    )
    crl: FilePath | None = setting(
        None, "list of revoked client certificates (PEM); refused without", example='"clients.crl"'
    )
    origins: list[str] = setting(
        [],
        "origins of web pages that may connect (https://app.example.org; * is any); "
        "none: the listener's own",
    )
    hosts: list[str] = setting(
        [], "names of this listener in the Host header; none: on loopback its own, else any"
    )
    proxy_protocol: bool = setting(
        False, "every connection begins with a PROXY header (v1 or v2) of one of `proxies`"
    )
    proxies: list[str] = setting(
        ["127.0.0.1", "::1"], "addresses and networks of proxies whose headers count"
    )

    @field_validator("origins")
    @classmethod
    def _origins_have_a_scheme(cls, value: list[str]) -> list[str]:
        for one in value:
            scheme, mark, rest = one.partition("://")
            if one != "*" and (not mark or not scheme or not rest or "/" in rest):
                msg = f"'{one}' is no origin such as https://app.example.org or https://a.org:8443"
                raise ValueError(msg)
        return value

    @field_validator("proxies")
    @classmethod
    def _proxies_are_networks(cls, value: list[str]) -> list[str]:
        for one in value:
            try:
                ip_network(one)
            except ValueError:
                msg = f"'{one}' is no address or network such as 10.0.0.0/8"
                raise ValueError(msg) from None
        return value

    @model_validator(mode="after")
    def _somebody_sends_headers(self) -> Self:
        if self.proxy_protocol and not self.proxies:
            msg = "'proxy_protocol' without 'proxies': no connection could be accepted"
            raise ValueError(msg)
        return self
