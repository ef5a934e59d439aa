"""The TLS contexts of listeners, from files that may be renewed."""

from __future__ import annotations

import ssl

from nearcast.config import ListenerSection
from nearcast.model.errors import EnvironmentProblem

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def tls_context(section: ListenerSection) -> ssl.SSLContext:
    """Return the TLS context of a listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[section.tls_minimum]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    assert section.certificate is not None
    try:
        context.load_cert_chain(section.certificate, section.key, password=_no_password)
        if section.client_ca is not None:
            context.load_verify_locations(section.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        if section.crl is not None:  # a missing or expired list refuses all certificates
            context.load_verify_locations(section.crl)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        if section.ciphers is not None:
            context.set_ciphers(section.ciphers)
    except (OSError, ssl.SSLError) as problem:
        raise EnvironmentProblem(
            f"a certificate, key, list or cipher that cannot be used ({problem})",
            where=f"listener on port {section.port}",
            expected="PEM files, and names of OpenSSL's ciphers",
        ) from None
    return context


def _no_password() -> str:
    """Refuse a key with a password: OpenSSL would ask for it on the terminal."""
    return ""
