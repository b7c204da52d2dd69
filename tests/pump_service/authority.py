"""A certificate authority for the tests of TLS."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """A CA that writes certificates and keys as PEM files."""

    def __init__(self, folder):
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        self.path = self._write(
            "ca.pem", self._certificate(self.name, self.key.public_key(), ca=True)
        )

    def _certificate(self, name, public_key, *, ca=False):
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            self.name, name, public_key, x509.random_serial_number(), now - _DAY, now + _DAY
        )
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return builder.add_extension(x509.SubjectAlternativeName([address]), False).sign(
            self.key, hashes.SHA256()
        )

    def _write(self, name, certificate):
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(self, common_name, file):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = self._write(f"{file}.pem", self._certificate(name, key.public_key()))
        path = self.folder / f"{file}.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, path
