"""``python -m deploy.start.bucket URL``: makes the bucket of a relay log's URL, if it isn't there.

For the object store of docker-compose.yaml; a bucket at a provider is made with the provider's own
tools. The request is a PUT of the bucket itself, signed as one of an object without a name.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import obstore
from obstore.store import S3Store

from deploy.start.secret_files import secrets_of

_PATIENCE = timedelta(minutes=5)


def request_url(url: str, secrets: dict[str, str]) -> str:
    """Return the URL to PUT to for the bucket of `url` to be there.

    `url`: ``s3://bucket/…?endpoint_override=…&region=…&scheme=…``
    """
    parts = urlsplit(url)
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    scheme = options.get("scheme", "https")
    store = S3Store(
        parts.netloc,
        endpoint=f"{scheme}://{options['endpoint_override']}",
        region=options.get("region", "us-east-1"),
        client_options={"allow_http": scheme == "http"},
        access_key_id=secrets["AWS_ACCESS_KEY_ID"],
        secret_access_key=secrets["AWS_SECRET_ACCESS_KEY"],
        virtual_hosted_style_request=False,
    )
    signed: str = obstore.sign(store, "PUT", "", _PATIENCE)
    return signed


def make(url: str, secrets: dict[str, str]) -> str:
    """Make the bucket; what came of it, for a log.

    Raises OSError if the store doesn't answer or refuses.
    """
    name = urlsplit(url).netloc
    request = urllib.request.Request(request_url(url, secrets), method="PUT")  # noqa: S310 - the store's own scheme
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=30
        ).close()
    except urllib.error.HTTPError as error:
        said = error.read(2_000).decode("utf-8", "replace")
        if error.code == 409:  # BucketAlreadyOwnedByYou, BucketAlreadyExists
            return f"bucket {name} is there"
        raise OSError(f"bucket {name}: HTTP {error.code}: {said}") from None
    return f"bucket {name} is there now"


def main() -> None:
    """Make the bucket, or end with a line that names what is wrong."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m deploy.start.bucket URL")
    try:
        secrets = {**os.environ, **secrets_of(os.environ)}
        print(make(sys.argv[1], secrets))
    except KeyError as error:
        sys.exit(f"bucket: {error.args[0]} is missing")
    except OSError as error:
        sys.exit(f"bucket: {error}")


if __name__ == "__main__":
    main()
