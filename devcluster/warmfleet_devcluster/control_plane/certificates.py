"""The cluster's certificate authority and the certificates it signs, in the state folder."""

import datetime as dt
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME: Final = dt.timedelta(days=365)
_SKEW: Final = dt.timedelta(hours=1)
"""Certificates begin this long before now, so that a clock that is set back still accepts them."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Files of one certificate (or public key) and its private key, both PEM."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """Signs into one folder. Every file is written once, readable by the owner alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "warmfleet-devcluster")])
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_ca_key_usage(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.files = self._write("ca", certificate, self._key)

    def client(self, file_name: str, *, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """A client certificate: the API server takes the user from CN and the groups from O."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, user),
            ]
        )
        return self._write(file_name, self._leaf(subject, key, ExtendedKeyUsageOID.CLIENT_AUTH), key)

    def server(self, file_name: str, *, names: Iterable[str], addresses: Iterable[IPv4Address]) -> KeyPair:
        """A serving certificate for these DNS names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file_name)])
        alternatives = x509.SubjectAlternativeName(
            [*(x509.DNSName(name) for name in names), *(x509.IPAddress(address) for address in addresses)]
        )
        certificate = self._leaf(subject, key, ExtendedKeyUsageOID.SERVER_AUTH, alternatives)
        return self._write(file_name, certificate, key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _LIFETIME)
        )

    def _leaf(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        usage: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> x509.Certificate:
        builder = (
            self._builder(subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(
        self, file_name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> KeyPair:
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        write_private(pair.key, _private_pem(key))
        return pair


def service_account_keys(folder: Path) -> KeyPair:
    """The pair that signs ServiceAccount tokens; `certificate` holds the public key alone.

    RSA, because tokens are then RS256, which every client library verifies.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pair = KeyPair(folder / "service-accounts.pub", folder / "service-accounts.key")
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_private(pair.certificate, public)
    write_private(pair.key, _private_pem(key))
    return pair


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _ca_key_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
