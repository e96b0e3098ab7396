"""The common part of the models of a topology."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from topology.address import check_address

Address = Annotated[str, AfterValidator(check_address)]
Text = Annotated[str, Field(min_length=1)]
_LONGEST_NAME = 255
"""Bytes of a file's name, on common file systems."""
_PATTERN = frozenset("*?[")


def _check_path(path: str) -> str:
    if "\0" in path:
        raise ValueError(f"expected a path, got {path!r}, which contains a null character")
    if any(unicodedata.category(each) == "Cc" for each in path):
        raise ValueError(
            f"expected a path, got {path!r}, which contains a control character; rename the file"
        )
    # A pattern may be longer than the names that it matches.
    if any(
        len(part.encode(errors="surrogatepass")) > _LONGEST_NAME and not _PATTERN & set(part)
        for part in path.split("/")
    ):
        raise ValueError(
            f"expected a path, got {path!r}, which contains a name of more than {_LONGEST_NAME} bytes"
        )
    return path


FilePath = Annotated[Text, AfterValidator(_check_path)]


class Model(BaseModel):
    """A part of a file: unknown keys are mistakes, and nothing changes afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True, allow_inf_nan=False)
