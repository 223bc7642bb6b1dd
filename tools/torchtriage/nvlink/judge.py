"""One judgement over everything that was said of a node's GPUs: findings, and a status for each GPU. Pure.

``ok`` needs something that was seen of the links themselves; a GPU of which only other facts are known is ``unknown``,
and one that has no links, or need not have any, is ``not_applicable``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torchtriage.gpu.analyze import short_bus
from torchtriage.nvlink.findings import Finding, worst
from torchtriage.nvlink.gpus import Gpu
from torchtriage.nvlink.health_catalogue import load_health
from torchtriage.nvlink.judge_counters import CounterJudge
from torchtriage.nvlink.judge_links import ends_early, judge_links, may_have_none
from torchtriage.nvlink.judge_nodes import has_no_links, judge_matrix, judge_states

if TYPE_CHECKING:
    from torchtriage.nvlink.gpus import Matrix, Seen
    from torchtriage.nvlink.health_catalogue import HealthCatalogue

Status = Literal["ok", "degraded", "failed", "unknown", "not_applicable"]
MAX_GAPS = 32
MAX_FINDINGS = 512


@dataclass
class Judged:
    """The judgement."""

    gpus: list[Gpu] = field(default_factory=list[Gpu])
    findings: list[Finding] = field(default_factory=list[Finding])
    """Faults, the gravest first, and behind them what is worth a word."""
    gaps: list[str] = field(default_factory=list[str])
    cut: list[Gpu] = field(default_factory=list[Gpu])
    """Those whose listing ends early."""

    def about(self, gpu: Gpu) -> list[Finding]:
        """Those about one GPU."""
        return [finding for finding in self.findings if finding.gpu is gpu]

    @property
    def faults(self) -> list[Finding]:
        """Those that are faults."""
        return [finding for finding in self.findings if finding.level != "ok"]


def judge(seen: Seen) -> Judged:
    """Judge everything that was seen, of one or several nodes."""
    catalogue = load_health()
    gpus = [*seen.gpus]
    _add_from_tables(gpus, seen.matrices)
    _settle_lost(gpus, seen)
    for gpu in gpus:
        gpu.mig = gpu.mig or any(gpu.facts.get(p, ("",))[0].lower() == "enabled" for p in catalogue.mig_paths)
    found, gaps = _of_gpus(gpus, catalogue)
    cut = [gpu for gpu in gpus if ends_early(gpu, catalogue)]
    gaps += [f"{gpu.label}: the listing of its links ends early" for gpu in cut]
    for matrix in seen.matrices:
        found += _of_matrix(matrix, gpus, seen.matrices, catalogue)
    grades = ("failed", "degraded", "ok")
    found.sort(key=lambda finding: grades.index(finding.level))
    if gpus and not any(link.state or link.readings for gpu in gpus for link in gpu.links.values()):
        gaps.append(
            "states and counters of links were not given: nvidia-smi nvlink -s and nvidia-smi nvlink -e tell them"
        )
    unknown = sorted({label for group in _groups(gpus) for gpu in group for label in _unknown(gpu, group, catalogue)})
    if unknown:
        gaps.append(f"counters that are not known here were not judged: {', '.join(unknown[:8])}")
    return Judged(gpus, found[:MAX_FINDINGS], list(dict.fromkeys(gaps))[:MAX_GAPS], cut)


def status_of(gpu: Gpu, judged: Judged, seen: Seen) -> Status:
    """How a GPU is."""
    catalogue = load_health()
    level = worst([finding.level for finding in judged.about(gpu)])
    if level != "ok":
        return level
    if may_have_none(gpu, catalogue):
        return "not_applicable"
    if any(gpu is each for each in judged.cut):
        return "unknown"
    links = [link for link in gpu.links.values() if link.up or link.readings]
    path, done = catalogue.fabric_done
    if links or (path in gpu.facts and gpu.facts[path][0].lower() == done):
        return "ok"
    tables = [m for m in seen.matrices if m.node == gpu.node and gpu.index in m.cells]
    model = catalogue.model(gpu.name)
    if any(cell == "OK" or cell.startswith("NV") for m in tables for cell in m.cells.get(gpu.index or 0, ())):
        return "ok"
    optional = model is None or not model.on_board
    return "not_applicable" if optional and any(has_no_links(m) for m in tables) else "unknown"


def _groups(gpus: list[Gpu]) -> list[list[Gpu]]:
    """GPUs of one node and one name, which are each other's peers."""
    groups: dict[tuple[str, str | None], list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.node, gpu.name), []).append(gpu)
    return list(groups.values())


def _unknown(gpu: Gpu, group: list[Gpu], catalogue: HealthCatalogue) -> set[str]:
    return CounterJudge(group, catalogue).unknown(gpu) if gpu is group[0] else set()


def _of_gpus(gpus: list[Gpu], catalogue: HealthCatalogue) -> tuple[list[Finding], list[str]]:
    found: list[Finding] = []
    gaps: list[str] = []
    for group in _groups(gpus):
        counters = CounterJudge(group, catalogue)
        for gpu in group:
            states = judge_states(gpu, catalogue)
            found += states
            if any(finding.kind == "lost" for finding in states):
                continue
            found += judge_links(gpu, [peer for peer in group if peer is not gpu], catalogue, gaps)
            found += counters.judge(gpu)
            if gpu.mig:
                gaps.append(f"{gpu.label}: MIG is enabled, under which links may be off: they were not judged")
    return found, gaps


def _of_matrix(matrix: Matrix, gpus: list[Gpu], all_of_them: list[Matrix], catalogue: HealthCatalogue) -> list[Finding]:
    of_node = {gpu.index: gpu for gpu in gpus if gpu.node == matrix.node and gpu.index is not None}
    if any(gpu.mig for gpu in of_node.values()):
        return []
    models = [catalogue.model(gpu.name) for gpu in of_node.values()]
    known = [model for model in models if model is not None]
    linked: bool | None = None
    if known and len(known) == len(models):
        linked = all(model.links > 0 and model.on_board and not model.mesh for model in known)
    elif any(other.node == matrix.node and has_no_links(other) for other in all_of_them):
        linked = False
    return judge_matrix(matrix, of_node, catalogue, linked=linked)


def _add_from_tables(gpus: list[Gpu], matrices: list[Matrix]) -> None:
    """GPUs that only a table names."""
    for matrix in matrices:
        known = {gpu.index for gpu in gpus if gpu.node == matrix.node}
        for index, line in sorted(matrix.lines.items()):
            if index not in known:
                gpus.append(Gpu(matrix.node, line.artefact, index))


def _settle_lost(gpus: list[Gpu], seen: Seen) -> None:
    """Sentences that say that a GPU is lost, to the GPU that they are about."""
    for node, raw, line in seen.lost:
        bus = short_bus(raw) if raw.partition(":")[2] else None
        known = next((gpu for gpu in gpus if gpu.node == node and bus is not None and gpu.bus == bus), None)
        if known is None:
            known = Gpu(node, line.artefact, bus=bus)
            gpus.append(known)
        known.lost = known.lost or line
