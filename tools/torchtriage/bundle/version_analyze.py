"""The versions that bundles record, as signals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.evidence import quote_value
from torchtriage.report import Signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SIGNAL = "proc.version"


def version_signals(manifests: Sequence[tuple[str, Sequence[Mapping[str, str]]]]) -> list[Signal]:
    """One signal for each version; ``manifests`` are names with what ``version_read.versions_task`` gave for them."""
    return [
        Signal(
            name=SIGNAL,
            facts={"package": told["package"], "version": clean_text(told["version"]), "works": False},
            evidence=[quote_value(name, told["where"], told["version"], SIGNAL)],
        )
        for name, found in manifests
        for told in found
    ]
