"""Encrypted connections between the processes of a run: each machine has a certificate, signed by the run's own CA.

    FOLDER/ca.pem, ca.key                       the CA; only who makes certificates needs its key
    FOLDER/HOST/ca.pem, cert.pem, key.pem       what the machine HOST needs: ASYNCRL_TLS names this folder there

A process that finds `ASYNCRL_TLS` serves over HTTPS only, and calls only services whose certificate this CA has signed
for the host by which it calls them.
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from asyncrl.errors import ConfigError

VARIABLE = "ASYNCRL_TLS"
CA, CERTIFICATE, KEY = "ca.pem", "cert.pem", "key.pem"
CA_KEY = "ca.key"
DAYS = 365
CLOCK_DAYS = 2
"""Before its date a certificate holds, too."""
ALWAYS = ("localhost", "127.0.0.1")
"""Processes of one machine also call each other at loopback."""


class Files(NamedTuple):
    """This machine's certificate and its key, and the CA's certificate."""

    certificate: Path
    key: Path
    ca: Path


def own_files() -> Files | None:
    """Return this machine's files, None where connections are not encrypted. Raises `ConfigError` for missing ones."""
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        return None
    found = Files(Path(folder, CERTIFICATE), Path(folder, KEY), Path(folder, CA))
    if missing := [path.name for path in found if not path.is_file()]:
        raise ConfigError(
            f"{VARIABLE}={folder}: has no {', '.join(missing)}; make them with asyncrl tls FOLDER HOST"
        )
    return found


def client_context() -> ssl.SSLContext | None:
    """Return what a client verifies services with; None where connections are not encrypted. Raises `ConfigError`."""
    files = own_files()
    return _context(files.ca) if files is not None else None


@functools.lru_cache(maxsize=4)
def _context(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ca}: is no certificate of a CA: {error}") from error


def scheme() -> str:
    """Return the scheme under which this process serves."""
    return "http" if own_files() is None else "https"


def make_certificates(folder: Path, hosts: Sequence[str]) -> list[Path]:
    """Make a certificate for each host, a name or an address, and the CA unless `folder` has one; return their folders.

    Keys are readable by their owner only. Raises `ConfigError` for a folder that cannot be written.
    """
    # Imported where it is used: every process imports this module.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def name(text: str) -> x509.Name:
        # The longest that X.509 allows; clients look at the alternative names.
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])

    def alternative(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    def unsigned(subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            # Clocks of machines differ, and are set.
            .not_valid_before(now - datetime.timedelta(days=CLOCK_DAYS))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
        )

    def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / CA).exists():
            key = ec.generate_private_key(ec.SECP256R1())
            own = (
                unsigned("asyncrl run", name("asyncrl run"), key.public_key())
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
                .add_extension(_usage(x509, signs=True), critical=True)
                .sign(key, hashes.SHA256())
            )
            _write(folder / CA_KEY, pem(key))
            (folder / CA).write_bytes(own.public_bytes(serialization.Encoding.PEM))
        ca = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        ca_key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        made = []
        for host in hosts:
            key = ec.generate_private_key(ec.SECP256R1())
            names = [alternative(one) for one in dict.fromkeys((host, *ALWAYS))]
            certificate = (
                unsigned(host, ca.subject, key.public_key())
                .add_extension(x509.SubjectAlternativeName(names), critical=False)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(
                    x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
                )
                .add_extension(_usage(x509, signs=False), critical=True)
                .sign(ca_key, hashes.SHA256())
            )
            own_folder = folder / host
            own_folder.mkdir(exist_ok=True, mode=0o700)
            _write(own_folder / KEY, pem(key))
            (own_folder / CERTIFICATE).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
            (own_folder / CA).write_bytes((folder / CA).read_bytes())
            made.append(own_folder)
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: {error.strerror}; give a folder with the CA, or a new one"
        ) from error
    return made


def _usage(x509: ModuleType, signs: bool) -> Any:
    """Return what a key is for: to sign certificates, or to prove who serves."""
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
