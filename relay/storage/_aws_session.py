"""Obtain S3 credentials that obstore can't: a named profile's, and an assumed role's.

boto3 resolves them, with the files and variables that all of AWS's tools read. It is the extra
``aws``, and needed here alone, on each machine that opens such a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import RequestError
from sluice.relay.errors import RelayError

if TYPE_CHECKING:
    from obstore.store import S3Credential

__all__ = ["aws_provider"]

_TTL = timedelta(minutes=5)
"""How long obstore keeps what a session gave.

boto3 gives credentials out until ten minutes before their end.
"""
_SESSION_NAME = "sluice"


class NoBoto3Error(RequestError, RelayError):
    """boto3 isn't installed."""

    hint = "pip install 'sluice[aws]', here and on Spark's workers"


def aws_provider(config: dict[str, Any], recipe: Mapping[str, Any]) -> Callable[[], S3Credential]:
    """Return the function by which obstore gets credentials, again whenever they have expired.

    `config`: obstore's settings of the store; its keys are the session's own, and removed. `recipe`
    has any of ``profile_name``; ``role_arn``; ``web_identity_token_file``, for which the role is
    assumed instead of with a key; ``assume_role_kwargs``, further parameters of the call to STS, by
    their names there; ``sts_endpoint``. Raises RelayError.
    """
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise NoBoto3Error(f"a profile or a role needs boto3: {error}") from None
    try:
        session = boto3.Session(
            profile_name=recipe.get("profile_name"),
            aws_access_key_id=config.pop("access_key_id", None),
            aws_secret_access_key=config.pop("secret_access_key", None),
            aws_session_token=config.pop("session_token", None),
            region_name=config.get("region"),
        )
        if session.region_name:
            config.setdefault("region", session.region_name)
        if not (role := recipe.get("role_arn")):
            provider: Callable[[], S3Credential] = Boto3CredentialProvider(session, ttl=_TTL)
            return provider
        token_file = recipe.get("web_identity_token_file")
        sts = session.client(
            "sts",
            endpoint_url=recipe.get("sts_endpoint"),
            config=Config(signature_version=UNSIGNED) if token_file else None,
        )
    except (BotoCoreError, ValueError) as error:
        raise RelayError(f"AWS session: {error}") from None
    asked = {
        "RoleSessionName": _SESSION_NAME,
        **recipe.get("assume_role_kwargs", {}),
        "RoleArn": role,
    }

    def assume() -> S3Credential:
        try:
            if token_file:
                token = Path(token_file).read_text(encoding="utf-8").strip()
                answer = sts.assume_role_with_web_identity(WebIdentityToken=token, **asked)
            else:
                answer = sts.assume_role(**asked)
        except (BotoCoreError, ClientError) as error:  # obstore's error has the text's first line
            raise RelayError(" ".join(str(error).split())) from None
        given = answer["Credentials"]
        return {
            "access_key_id": given["AccessKeyId"],
            "secret_access_key": given["SecretAccessKey"],
            "token": given["SessionToken"],
            "expires_at": given["Expiration"].astimezone(UTC),  # obstore refuses others
        }

    return assume
