"""What -q says of each GPU, and what the tables of topo say of pairs of them. Pure.

A table is judged only where its own pattern is clear: on a machine whose GPUs are all connected alike. A mesh, where
some pairs have no link by design, and cards in pairs are left alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from torchtriage.artefacts.clean import clean_text
from torchtriage.nvlink.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.nvlink.findings import Kind
    from torchtriage.nvlink.gpus import Gpu, Matrix
    from torchtriage.nvlink.health_catalogue import HealthCatalogue

MIN_LINKS_OF_A_SWITCH = 4
"""Of a pair. A mesh of direct links has fewer for each."""
MIN_GPUS = 3
MAX_LINES = 4


def judge_states(gpu: Gpu, catalogue: HealthCatalogue) -> list[Finding]:
    """What the driver says of a GPU."""
    if gpu.lost is not None:
        return [lost(gpu, catalogue)]
    found: list[Finding] = []
    for path, (value, line) in gpu.facts.items():
        meaning = catalogue.states.get(path)
        judged = meaning.of(value) if meaning is not None else None
        if meaning is not None and judged is not None:
            says = f"{gpu.label}: {meaning.means.format(value=clean_text(value, 60))}"
            facts = {"path": path, "value": clean_text(value, 60)}
            found.append(Finding(cast("Kind", meaning.kind), judged[0], gpu, says, judged[1], (), (line,), facts))
    return found


def lost(gpu: Gpu, catalogue: HealthCatalogue) -> Finding:
    """A GPU that does not answer any more."""
    lines = (gpu.lost,) if gpu.lost is not None else ()
    return Finding(
        "lost", "failed", gpu, f"{gpu.label} is lost: it does not answer the driver any more", catalogue.lost_action,
        (), lines, {"bus": gpu.bus},
    )  # fmt: skip


def judge_matrix(
    matrix: Matrix, gpus: Mapping[int, Gpu], catalogue: HealthCatalogue, *, linked: bool | None
) -> list[Finding]:
    """What a table shows.

    Args:
        matrix: the table.
        gpus: those of its node by index.
        catalogue: what the GPUs should have.
        linked: whether the node's GPUs should all be linked; None where their names are not known.
    """
    pairs = {
        (row, column): cell
        for row, cells in matrix.cells.items()
        for column, cell in enumerate(cells)
        if row < column and cell != "X"
    }
    if not pairs or linked is False:
        return []
    good = _usual(matrix.kind, pairs)
    if good is None:
        return _none_linked(matrix, pairs, gpus, catalogue, linked=linked)
    odd = {pair: cell for pair, cell in pairs.items() if cell != good}
    culprit = _in_all(list(odd), matrix)
    if culprit is None or culprit not in gpus:
        return []
    gpu, cell = gpus[culprit], next(iter(odd.values()))
    fewer = cell.startswith("NV")
    what = f"{len(odd)} of its pairs are {cell}, and {good} is usual on this node"
    return [
        Finding(
            "link_down", "degraded" if fewer else "failed", gpu, f"{gpu.label}: {what}", catalogue.link_down_action,
            (), (matrix.lines[culprit],) if culprit in matrix.lines else (), {"cell": cell, "usual": good},
        )
    ]  # fmt: skip


def has_no_links(matrix: Matrix) -> bool:
    """Whether it shows, by its own words, a machine without NVLink."""
    cells = [cell for cells in matrix.cells.values() for cell in cells]
    return matrix.kind == "paths" and not any(cell.startswith("NV") for cell in cells)


def _usual(kind: str, pairs: Mapping[tuple[int, int], str]) -> str | None:
    """What at least half of all pairs have, if that is NVLink."""
    word, count = Counter(pairs.values()).most_common(1)[0]
    if count * 2 < len(pairs):
        return None
    if kind == "peers":
        return word if word == "OK" else None
    return word if word.startswith("NV") and int(word[2:]) >= MIN_LINKS_OF_A_SWITCH else None


def _none_linked(
    matrix: Matrix, pairs: Mapping[tuple[int, int], str], gpus: Mapping[int, Gpu], catalogue: HealthCatalogue, *,
    linked: bool | None,
) -> list[Finding]:  # fmt: skip
    """No pair is connected: a fault on a machine with NVLink; of GPUs that are not known, only -p2p tells."""
    any_good = any(cell == "OK" or cell.startswith("NV") for cell in pairs.values())
    if any_good or (linked is None and matrix.kind == "paths"):
        return []
    words = sorted(set(pairs.values()))
    about = gpus[min(gpus)] if len(gpus) == 1 else None
    lines = [line for _, line in sorted(matrix.lines.items())][:MAX_LINES]
    what = "peer access over NVLink works between no pair of GPUs" if matrix.kind == "peers" else "no pair has NVLink"
    return [
        Finding(
            "fabric_not_ready", "failed" if linked else "degraded", about, f"{what} ({', '.join(words)})",
            catalogue.fabric_down_action, (), tuple(lines), {"cells": words, "n_pairs": len(pairs)},
        )
    ]  # fmt: skip


def _in_all(odd: Sequence[tuple[int, int]], matrix: Matrix) -> int | None:
    """The one GPU that all odd pairs have in common and that is odd towards all others."""
    n_gpus = max(len(matrix.cells), max((len(cells) for cells in matrix.cells.values()), default=0))
    if n_gpus < MIN_GPUS or len(odd) < n_gpus - 1 or len(odd) > n_gpus - 1:
        return None
    shared = set(odd[0]).intersection(*map(set, odd))
    return min(shared) if shared else None
