"""Keys that sign tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

EC = ec.generate_private_key(ec.SECP256R1())


def jwk(private: Any, key_id: str, **more: str) -> dict[str, Any]:
    is_ec = isinstance(private, ec.EllipticCurvePrivateKey)
    name = "RS256" if isinstance(private, rsa.RSAPrivateKey) else "ES256" if is_ec else "EdDSA"
    found = jwt.get_algorithm_by_name(name).to_jwk(private.public_key(), as_dict=True)
    return {**found, "kid": key_id, **more}


def key_file(path: Path, *keys: dict[str, Any]) -> str:
    path.write_text(json.dumps({"keys": list(keys)}))
    return str(path)
