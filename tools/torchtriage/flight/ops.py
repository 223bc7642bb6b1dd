"""What must be equal between ranks in one call of an operation, and what may differ. Facts as tables.

Sources: ProcessGroupNCCL.cpp (profiling titles), fr_trace components/types.py (torch 2.13), NCCL's rules on counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torchtriage.flight.naming import named

if TYPE_CHECKING:
    from collections.abc import Sequence

Sizes = tuple[tuple[int, ...], ...]

# Every member passes as many elements as every other one.
EQUAL_SIZES = frozenset(
    {
        "all_reduce", "allreduce", "allreduce_coalesced", "all_reduce_coalesced", "all_reduce_sparse", "broadcast",
        "_broadcast_oop", "reduce", "_reduce_oop", "all_gather", "allgather", "_all_gather_base", "all_gather_base",
        "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced",
        "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_base", "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced", "ALLGATHER_coalesced", "ALLGATHER", "REDUCE_SCATTER_coalesced",
    }
)  # fmt: skip

# Ranks may send and receive different amounts; over all members, what is sent is what is received.
CONSERVED_SIZES = frozenset({"all_to_all", "alltoall", "all_to_all_single", "alltoall_base", "_all_to_all_base"})

# A member may finish these before others have joined: the data flows one way.
ROOTED = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter", "gather_single"})


@dataclass(frozen=True)
class Signature:
    """One distinct call: what was asked for, without where and when. Sizes and dtypes are None when not recorded."""

    op: str
    in_sizes: Sizes | None
    out_sizes: Sizes | None
    in_dtypes: tuple[str, ...] | None
    out_dtypes: tuple[str, ...] | None

    def comparable(self) -> tuple[object, ...]:
        """What two ranks must have in common for the call to fit together."""
        if self.op in EQUAL_SIZES:
            return (self.op, numels(self.in_sizes), numels(self.out_sizes), self.in_dtypes, self.out_dtypes)
        if self.op in CONSERVED_SIZES:
            return (self.op, None, None, self.in_dtypes, self.out_dtypes)
        # Of gather and scatter only the root passes the full list; barriers carry a dummy tensor.
        return (self.op, None, None, None, None)

    def is_vague(self) -> bool:
        """Whether sizes or dtypes are unknown that others know."""
        return None in (self.in_sizes, self.out_sizes, self.in_dtypes, self.out_dtypes)

    def may_be(self, other: Signature) -> bool:
        """Whether both can be the same call: what is unknown in one fits whatever the other has."""
        return self.op == other.op and _fit(
            (self.in_sizes, self.out_sizes, self.in_dtypes, self.out_dtypes),
            (other.in_sizes, other.out_sizes, other.in_dtypes, other.out_dtypes),
        )

    def describe(self) -> str:
        """Short words for a person: operation, sizes, dtype."""
        parts = [named(self.op)]
        if self.in_sizes is not None:
            shown = _shown(self.in_sizes)
            if self.out_sizes is not None and self.out_sizes != self.in_sizes:
                shown += f" -> {_shown(self.out_sizes)}"
            parts.append(shown)
        if self.in_dtypes:
            parts.append(named("/".join(sorted(set(self.in_dtypes))[:4])))
        return " ".join(parts)


def op_of(profiling_name: str) -> str:
    """The operation in "backend:operation"; any backend will do, also none."""
    return profiling_name.partition(":")[2] or profiling_name


def numels(sizes: Sizes | None) -> tuple[int, ...] | None:
    """Elements per tensor: [2, 3] and [6] are the same to the communication library."""
    return None if sizes is None else tuple(prod(shape) for shape in sizes)


def numel(sizes: Sizes | None) -> int | None:
    """Elements of all tensors together."""
    per_tensor = numels(sizes)
    return None if per_tensor is None else sum(per_tensor)


def sent_received(signatures: Sequence[Signature]) -> tuple[int, int] | None:
    """(elements sent, elements received) by one member of a call whose sums over all members must be equal."""
    if len(signatures) != 1 or signatures[0].op not in CONSERVED_SIZES:
        return None
    sent, received = numel(signatures[0].in_sizes), numel(signatures[0].out_sizes)
    return None if sent is None or received is None else (sent, received)


def how_they_differ(expected: Sequence[Signature], found: Sequence[Signature]) -> str:
    """The kind of divergence between two calls (several signatures when coalesced) that do not fit together."""
    for one, other in zip(expected, found, strict=False):
        a, b = one.comparable(), other.comparable()
        if a[0] != b[0]:
            return "type_mismatch"
        if not _fit(a, b):
            return "dtype_mismatch" if _fit(a[1:3], b[1:3]) else "size_mismatch"
    return "size_mismatch"  # one coalesces more than the other


def fit_together(one: Sequence[tuple[object, ...]], other: Sequence[tuple[object, ...]]) -> bool:
    """Whether two calls agree in all that both know; ``one`` and ``other`` are what is comparable of them."""
    return len(one) == len(other) and all(_fit(a, b) for a, b in zip(one, other, strict=True))


def _fit(one: Sequence[object], other: Sequence[object]) -> bool:
    return all(a == b or a is None or b is None for a, b in zip(one, other, strict=True))


def is_barrier(op: str) -> bool:
    """Whether the operation is a barrier, by any backend's name."""
    return "barrier" in op


def _shown(sizes: Sizes) -> str:
    text = "[" + ", ".join("[" + ", ".join(map(str, shape)) + "]" for shape in sizes[:3]) + "]"
    return text if len(sizes) <= 3 else f"{text[:-1]}, ... {len(sizes)} tensors]"
