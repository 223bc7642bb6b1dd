"""JSON Schemas of everything that torchtriage returns, reads or writes, by name.

Reports get theirs from the models; the bundle manifest and the case file from the models in their rooms; the playbook
entry's front matter and the message templates from the playbook itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtriage import report, tool_reports
from torchtriage.errors import BadCallError

if TYPE_CHECKING:
    from pydantic import BaseModel

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def _models() -> dict[str, type[BaseModel]]:
    from torchtriage.bundle.manifest import Manifest
    from torchtriage.evals.case import Case
    from torchtriage.nvlink.report import NvlinkReport

    return {
        "verdict": report.Verdict,
        "evidence": report.Evidence,
        "signal": report.Signal,
        "dump-stacks": tool_reports.StacksReport,
        "analyze-flight-recorder": tool_reports.FlightReport,
        "memory-snapshot": tool_reports.MemoryReport,
        "nvlink-health": NvlinkReport,
        "playbook": tool_reports.PlaybookReport,
        "collect": tool_reports.CollectReport,
        "record-flamegraph": tool_reports.FlamegraphReport,
        "manifest": Manifest,
        "case": Case,
    }


def schema_names() -> list[str]:
    """All names that :func:`schema` knows."""
    return [*_models(), "playbook-entry", "message-templates"]


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of that name; underscores and hyphens are alike.

    Raises:
        BadCallError: there is no such schema.
    """
    wanted = name.strip().lower().replace("_", "-")
    if wanted == "playbook-entry":
        from torchtriage.knowledge.locate import data_root
        from torchtriage.knowledge.validate import front_matter_schema

        return front_matter_schema(data_root())
    if wanted == "message-templates":
        from torchtriage.knowledge.locate import data_root
        from torchtriage.knowledge.validate_templates import templates_schema

        return templates_schema(data_root())
    model = _models().get(wanted)
    if model is None:
        raise BadCallError(f"no schema is called {name[:60]!r}; known: {', '.join(schema_names())}")
    # Reports are read by others: with defaults filled in, every field is there.
    return {"$schema": _DRAFT, **model.model_json_schema(mode="validation")}
