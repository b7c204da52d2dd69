"""Convert an Airflow connection to an object store's credentials, without provider packages.

Types and fields are those that Airflow's documentation gives for its providers: ``aws`` (Amazon),
``google_cloud_platform`` (Google), ``wasb`` (Azure Blob Storage).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from sluice.etl.settings.database_connection import send_password
from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.secrets import connection_of
from sluice.etl.settings.sections import Settings
from sluice.relay.storage.credentials import StoreCredentials, register_provider

__all__ = ["AirflowConnection", "credentials_of", "provide_credentials"]


class AirflowConnection(Protocol):
    """The fields of airflow.sdk's Connection that Sluice uses."""

    conn_type: str
    login: str | None
    password: str | None
    host: str | None

    @property
    def extra_dejson(self) -> Mapping[str, Any]: ...


def credentials_of(connection: AirflowConnection, key: str) -> StoreCredentials:
    """Return the credentials in a connection; `key`: which setting names it, for errors.

    Raises SettingsError, which repeats no secret.
    """
    kinds = {"aws": _aws, "google_cloud_platform": _google, "wasb": _azure}
    if connection.conn_type not in kinds:
        raise SettingsError(
            f"{key}: the connection's type is {connection.conn_type!r}, {', '.join(kinds)} are"
            " possible"
        )
    extra = {_short(name): value for name, value in connection.extra_dejson.items()}
    found = {
        name: str(value)
        for name, value in kinds[connection.conn_type](connection, extra, key).items()
        if value
    }
    aws = _aws_recipe(extra, key) if connection.conn_type == "aws" else {}
    if not found and not aws:
        raise SettingsError(
            f"{key}: the connection holds no credentials",
            hint="remove the key to use the machine's role",
        )
    return StoreCredentials(found, aws)


def _short(name: str) -> str:
    """Remove the type that older connections have before each name.

    An example is ``extra__google_cloud_platform__key_path``.
    """
    return name.rpartition("__")[2] if name.startswith("extra__") else name


def _aws(connection: AirflowConnection, extra: Mapping[str, Any], _: str) -> dict[str, Any]:
    return {
        "access_key_id": connection.login or extra.get("aws_access_key_id"),
        "secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "session_token": extra.get("aws_session_token"),
        "region": extra.get("region_name"),
        "endpoint": extra.get("endpoint_url"),
    }


def _aws_recipe(extra: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return how boto3 gets the credentials, by the names of `aws_provider`; {} if it needn't."""
    recipe: dict[str, Any] = {"profile_name": extra.get("profile_name")}
    if role := extra.get("role_arn"):
        sts = (extra.get("service_config") or {}).get("sts") or {}
        recipe |= {
            "role_arn": role,
            "web_identity_token_file": _token_file(extra, key),
            "assume_role_kwargs": extra.get("assume_role_kwargs"),
            "sts_endpoint": sts.get("endpoint_url"),
        }
    return {name: value for name, value in recipe.items() if value}


def _token_file(extra: Mapping[str, Any], key: str) -> str:
    """Return the file with the token for which the role is assumed, "" for none."""
    method = extra.get("assume_role_method") or "assume_role"
    if method == "assume_role":
        return ""
    federation = extra.get("assume_role_with_web_identity_federation")
    if method != "assume_role_with_web_identity" or federation != "file":
        raise SettingsError(
            f"{key}: assume_role_method = {method!r}, federation {federation!r}: the role can't be"
            " assumed in this way",
            hint=(
                "use assume_role, or assume_role_with_web_identity with"
                ' assume_role_with_web_identity_federation = "file"'
            ),
        )
    path = extra.get("assume_role_with_web_identity_token_file") or os.environ.get(
        "AWS_WEB_IDENTITY_TOKEN_FILE"
    )
    if not path:
        raise SettingsError(
            f"{key}: the file with the token of the web identity isn't known",
            hint="set assume_role_with_web_identity_token_file, or AWS_WEB_IDENTITY_TOKEN_FILE",
        )
    return str(path)


def _google(_: AirflowConnection, extra: Mapping[str, Any], key: str) -> dict[str, Any]:
    content = extra.get("keyfile_dict")
    if content and not isinstance(content, str):
        content = json.dumps(content)
    found = {
        "service_account_key": content,
        "service_account": None if content else extra.get("key_path"),
    }
    if not any(found.values()) and extra.get("key_secret_name"):
        raise SettingsError(
            f"{key}: key_secret_name isn't read", hint="use keyfile_dict or key_path"
        )
    return found


def _azure(connection: AirflowConnection, extra: Mapping[str, Any], _: str) -> dict[str, Any]:
    text = extra.get("connection_string")
    if text:
        fields = dict(part.partition("=")[::2] for part in str(text).split(";") if part)
        return {
            "account_name": fields.get("AccountName"),
            "account_key": fields.get("AccountKey"),
            "sas_key": fields.get("SharedAccessSignature"),
            "endpoint": fields.get("BlobEndpoint"),
        }
    host = connection.host or ""
    account = (urlsplit(host).hostname or host).partition(".")[0]
    if extra.get("tenant_id"):
        return {
            "account_name": account,
            "tenant_id": extra["tenant_id"],
            "client_id": connection.login,
            "client_secret": connection.password,
        }
    return {
        "account_name": connection.login or account,
        "account_key": connection.password or extra.get("shared_access_key"),
        "sas_key": extra.get("sas_token"),
    }


def provide_credentials(settings: Settings) -> None:
    """Open the relay log's and the archive's stores with the connections in the settings.

    The connections are resolved when the first store is opened. Spark's workers get the password of
    TiDB's, too.
    """
    if settings.upstream.sql_connection and not settings.upstream.sql_password_env:
        send_password("[upstream] sql-connection", settings.upstream.sql_connection)
    for section, url, connection in (
        ("relay", settings.relay.url, settings.relay.connection),
        ("archive", settings.archive_url, settings.archive.connection),
    ):
        if connection:
            key = f"[{section}] connection"
            register_provider(url, partial(_lookup_credentials, key, connection))


def _lookup_credentials(key: str, connection: str) -> StoreCredentials:
    return credentials_of(connection_of(key, connection), f"{key} {connection}")
