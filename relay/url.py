"""The relay log's URL: what is understood, and that no secret is in it.

A URL is written to logs, `sluice status` and Spark jobs, so credentials in it are refused, and
never repeated in the refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from sluice.relay.errors import RelayError

_S3_OPTIONS = ("region", "endpoint_override", "scheme")
_OBJECT_STORES = {
    "s3": "S3",
    "gs": "Google Cloud Storage",
    "az": "Azure",
    "abfs": "Azure",
    "abfss": "Azure",
}
CREDENTIALS_HINT = (
    "take credentials out of the URL; they come from the environment of every process that opens"
    " the relay log, Spark's workers among them (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY;"
    " GOOGLE_SERVICE_ACCOUNT; AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY), or from the"
    " machine's role"
)


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """A relay log's location: a local `directory`, or a `store` URL and its `options`."""

    directory: Path | None
    store: str = ""
    options: tuple[tuple[str, str], ...] = ()


def parse_url(url: str) -> StorageLocation:
    """Parse a URL; a plain absolute path is a local directory.

    Raises RelayError, which repeats no credentials.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise RelayError(f"relay URL: it is not a URL; {CREDENTIALS_HINT}") from None
    if parts.scheme in ("", "file"):
        return StorageLocation(_directory(url))
    refuse_credentials(url)
    if parts.scheme not in _OBJECT_STORES:
        raise RelayError(
            f"relay URL {url}: use file:///dir (a file system that all machines mount, for HDFS its"
            " NFS gateway), or s3://, gs://, az://, abfss://, which can create a file only if it"
            " isn't there"
        )
    if not parts.netloc:
        raise RelayError(
            f"relay URL {url}: the bucket is missing, as in"
            f" {parts.scheme}://bucket{parts.path or '/relay'}"
        )
    return StorageLocation(
        None, f"{parts.scheme}://{parts.netloc}{parts.path}", tuple(parse_qsl(parts.query))
    )


def local_folder(url: str) -> Path | None:
    """Return the folder that a URL names, None for an object store. Raises RelayError."""
    return parse_url(url).directory


def folder_of(url: str, folder: str) -> str:
    """Return the URL of a folder inside of what `url` names, with the same options."""
    parts = urlsplit(url)
    if not parts.scheme:
        return f"{url.rstrip('/')}/{folder}"
    return parts._replace(path=f"{parts.path.rstrip('/')}/{folder}").geturl()


def refuse_credentials(url: str) -> None:
    """Check that a URL holds no user information, and no option that may be a secret.

    Raises RelayError. A secret key may hold '/' or '#', so it is looked for in what an unescaped
    one leaves behind, too.
    """
    parts = urlsplit(url)
    if parts.scheme == "":
        return
    container = (
        parts.scheme in ("abfs", "abfss")
        and parts.netloc.count("@") == 1
        and ":" not in parts.netloc
    )
    port = (
        parts.netloc.rpartition(":")[2].isdigit()
        and "@" not in parts.netloc
        and parts.scheme not in _OBJECT_STORES
    )
    user = (":" in parts.netloc and not port) or ("@" in parts.netloc and not container)
    if user or (parts.scheme != "file" and ("@" in parts.path or parts.fragment)):
        raise RelayError(
            f"relay URL {parts.scheme}://…: there is user information in it; {CREDENTIALS_HINT}"
        )
    known = _S3_OPTIONS if parts.scheme == "s3" else ()
    for key, _ in parse_qsl(parts.query, keep_blank_values=True) if parts.scheme != "file" else ():
        if key not in known:
            there = f"there are {', '.join(known)}" if known else "there are none"
            raise RelayError(
                f"relay URL {parts.scheme}://…: unknown option {key}; {there}; {CREDENTIALS_HINT}"
            )


def _directory(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        refuse_credentials(url)
        raise RelayError(
            f"relay URL {url}: a file URL needs three slashes, as in"
            f" file:///{parts.netloc}{parts.path}"
        )
    path = unquote(parts.path) if parts.scheme else url
    if not path.startswith("/"):
        raise RelayError(
            f"relay URL {url}: the directory must be absolute, as in file:///var/lib/sluice/relay"
        )
    return Path(path)
