"""`throw_away_security`: TLS for one own cluster, with a key that nobody else ever holds.

`why_no_tls` tells what an existing cluster with TLS lacks.
"""

from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from distributed.security import Security

_ROLES = ("client", "scheduler", "worker")


def throw_away_security() -> Security:
    """Make a key and a certificate that the scheduler, workers and clients of a cluster share.

    Both are in memory only. A certificate of `Security.temporary` is valid for a year from now:
    a clock that is set back, or a longer service, would keep out workers that are started anew.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "georesolve")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    own = certificate.public_bytes(Encoding.PEM).decode()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return Security(
        require_encryption=True,
        tls_ca_file=own,
        **{f"tls_{role}_cert": own for role in _ROLES},
        **{f"tls_{role}_key": secret for role in _ROLES},
    )


def why_no_tls(address: str | None) -> str | None:
    """Why a scheduler at ``tls://`` cannot be connected to, in one line; None where it can.

    Without certificates Dask fails when it connects, and asks for an object of Python's ssl.
    """
    if not (address or "").startswith("tls://"):
        return None
    lack = "Dask is configured with none"
    try:
        if Security().get_connection_args("client")["ssl_context"]:
            return None
    except OSError as error:
        lack = f"those that Dask is configured with cannot be read ({error.strerror or error})"
    return (
        f"the scheduler {address} needs TLS certificates, and {lack}: make them with "
        "deploy/make_certificates.sh FOLDER, and start the scheduler, its workers and the service "
        "with DASK_CONFIG=FOLDER"
    )
