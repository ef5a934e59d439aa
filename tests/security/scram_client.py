"""The client of a SCRAM login."""

from __future__ import annotations

import base64
import hashlib
import hmac


def final(first: bytes, answer: bytes, password: str, nonce: str = "") -> bytes:
    """Return a client's last message."""
    fields = dict(part.split("=", 1) for part in answer.decode().split(","))
    salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    bare = f"c=biws,r={nonce or fields['r']}"
    signed = f"{first.decode().partition(',,')[2]},{answer.decode()},{bare}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}".encode()
