"""The case file: what an agent sees of a failure, and the truth about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from torchtriage.errors import KnowledgeError
from torchtriage.report import Culprits, Model

if TYPE_CHECKING:
    from pathlib import Path

Identifier = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Expected(Model):
    """The truth. Special failure modes: healthy, insufficient-evidence, out-of-domain."""

    failure_mode: Identifier
    acceptable: list[Identifier] = []
    branch: str
    culprits: Culprits = Culprits()
    must_cite: list[str] = Field(default=[], description="texts of which each must be part of some quoted evidence")
    must_not_claim: list[Identifier] = Field(default=[], description="modes that look right and are wrong")
    next_check: str | None = Field(default=None, description="the tool that decides it when the case alone cannot")


class Provenance(Model):
    """Where the case is from."""

    source: str
    command: str | None = None
    hardware: str | None = None
    versions: dict[str, str] = {}
    licence: str = "Apache-2.0"


class Case(Model):
    """``case.yaml``."""

    schema_version: Literal["1"] = "1"
    family: str
    prompt: str
    inputs: str = "inputs"
    expected: Expected
    difficulty: Literal["easy", "medium", "hard"]
    provenance: Provenance
    split: Literal["dev", "holdout"]


def load_case(folder: Path) -> Case:
    """Load the case in ``folder``.

    Raises:
        KnowledgeError: the file is missing or not a case.
    """
    path = folder / "case.yaml"
    try:
        raw: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Case.model_validate(raw)
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise KnowledgeError(f"{path}: not a case: {error}") from error
