"""A certificate authority for tests: certificates of servers and clients, revocation lists."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_FROM = datetime.now(UTC) - timedelta(hours=1)
_TO = _FROM + timedelta(days=2)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates into a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _name("test authority")
        basic = x509.BasicConstraints(ca=True, path_length=None)
        self.certificate = (
            self._builder("test authority", self.key)
            .add_extension(basic, critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(self.key, hashes.SHA256())
        )
        self.path = directory / "ca.pem"
        self.path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_FROM)
            .not_valid_after(_TO)
        )

    def issue(self, name: str, *dns: str, file: str = "") -> tuple[Path, Path, x509.Certificate]:
        """Write a certificate and its key; return the files and the certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(one) for one in dns]
        names.append(x509.IPAddress(ip_address("127.0.0.1")))
        certificate = (
            self._builder(name, key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        paths = [self.directory / f"{file or name}.{end}" for end in ("pem", "key")]
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        paths[1].touch(0o600)
        paths[1].write_bytes(private)
        return paths[0], paths[1], certificate

    def revoke(self, *certificates: x509.Certificate) -> Path:
        """Write a list of revoked certificates."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(_FROM)
            .next_update(_TO)
        )
        for one in certificates:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(one.serial_number)
                .revocation_date(_FROM)
                .build()
            )
        path = self.directory / "revoked.pem"
        signed = builder.sign(self.key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return path
