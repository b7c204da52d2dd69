"""TLS of connections that speak SQL: to the downstream, and to TiDB."""

from __future__ import annotations

import ssl


def sql_tls(ca: str, cert: str, key: str, *, verify_identity: bool) -> ssl.SSLContext | None:
    """Return the TLS context, None if no file asks for TLS.

    `ca`: file with the authorities that the server's certificate must come from; `cert` and `key`:
    this client's. Raises ValueError when one of them is missing, OSError for files that aren't
    there or aren't certificates; both name it.
    """
    if not (ca or cert or key):
        return None
    if not ca or bool(cert) != bool(key):
        raise ValueError("TLS needs ssl-ca; a client certificate needs both ssl-cert and ssl-key")
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise OSError(f"ssl-ca {ca}, ssl-cert {cert}, ssl-key {key}: {error}") from None
    context.check_hostname = verify_identity
    # Python 3.13 refuses certificates without the identifiers of RFC 5280, which TiDB, MySQL and
    # Python 3.12 take
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
