"""Numbers from which a reading of nvidia-smi says something, each with where it is known from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """One number and its source."""

    value: float
    source: str


BUSY_PERCENT = Threshold(99, "utilisation is the share of time in which any kernel ran; one that spins gives 100 %")
SPINNING_POWER_SHARE = Threshold(
    0.30,
    "recorded on H200 (limit 700 W): 118 to 125 W at 0 % with a context, 122 to 184 W with a waiting NCCL kernel and "
    "with a job that is too small for the card; training kernels of usual size draw more than half of the limit",
)
THROTTLED_CLOCK_SHARE = Threshold(
    0.75,
    "of the card's highest SM clock; nvml.h says that HW Slowdown lowers clocks by a factor of 2 or more, and a card "
    "that gives way to heat for a moment stays above",
)
SLOW_CLOCK_SHARE = Threshold(0.6, "of the median SM clock of the node's other busy GPUs of the same name")
WORKS_PERCENT = Threshold(50, "below it a low clock may just be a card that rests")
FOREIGN_MEMORY_SHARE = Threshold(0.30, "the share from which the allocator's own message counts as another's memory")
