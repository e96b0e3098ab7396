"""Access: permission to connect, by certificates and by a secret that is never in the file itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, model_validator

from topology.base import FilePath, Model, Text

if TYPE_CHECKING:
    from pathlib import Path


class TlsFiles(Model):
    """Files in PEM form for mutual TLS 1.3; relative paths start at the topology's directory.

    ``server_name`` is the name in receivers' certificates, if it is not the host of their address.
    """

    certificate: FilePath
    key: FilePath
    authority: FilePath
    server_name: Text | None = None


def _check_variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("expected env to name an environment variable: letters, digits and underscores")
    return name


class SecretPlace(Model):
    """The place of a secret: the first line of a file, or an environment variable."""

    file: FilePath | None = None
    env: Annotated[Text, AfterValidator(_check_variable)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> SecretPlace:
        if (self.file is None) == (self.env is None):
            raise ValueError("expected either file or env as secret")
        return self


def _no_text(value: Any) -> Any:
    if isinstance(value, str | int | float):  # and it is not repeated here, where it would be seen again
        raise ValueError(  # noqa: TRY004 - pydantic makes a mistake of it, with its place
            "a topology must not contain a secret; expected {file: path} or {env: NAME of an environment "
            "variable}"
        )
    return value


Secret = Annotated[SecretPlace, BeforeValidator(_no_text, json_schema_input_type=SecretPlace)]


class Access(Model):
    """The credentials of a process, and those that it expects of others."""

    tls: TlsFiles | None = None
    secret: SecretPlace | None = None

    def below(self, directory: Path) -> Access:
        """The same, with relative paths below ``directory`` made absolute."""
        found: dict[str, Any] = {}
        if self.tls is not None:
            files = {
                name: str(directory / getattr(self.tls, name)) for name in ("certificate", "key", "authority")
            }
            found["tls"] = self.tls.model_copy(update=files)
        if self.secret is not None:
            file = self.secret.file
            found["secret"] = (
                self.secret
                if file is None
                else self.secret.model_copy(update={"file": str(directory / file)})
            )
        return Access(**found)
