"""What the readers of link answers fill in: a record per GPU and form of answer, matrices, sentences of loss.

All of it is bounded: a file holds at most so many GPUs, links, counters and facts. Stdlib only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torchtriage.artefacts.clean import clean_text

if TYPE_CHECKING:
    from collections.abc import Hashable

MAX_LINE_CHARS = 1000
MAX_GPUS = 256
MAX_LINK = 64
MAX_COUNTERS = 64
MAX_FACTS = 200
MAX_FAILURES = 64
MAX_MATRICES = 32
MAX_TEXT_CHARS = 200
MAX_READINGS = 8


@dataclass
class Record:
    """One GPU as one form of answer shows it; every value stands with the number and the text of its line."""

    form: str
    """nvlink, q, xml or dcgmi."""
    ordinal: int
    """Its place among the GPUs of that form in the file."""
    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    bus: str | None = None
    mig: bool = False
    inactive: list[Any] | None = None
    """Where it says that all links are inactive."""
    lost: list[Any] | None = None
    """Where it says that the GPU is lost."""
    states: dict[str, list[Any]] = field(default_factory=dict[str, "list[Any]"])
    """By link: state, GB/s or None, line number, text."""
    counters: dict[str, dict[str, list[list[Any]]]] = field(default_factory=dict[str, "dict[str, list[list[Any]]]"])
    """By link and words: readings in the order of the file, each value, line number, text."""
    facts: dict[str, list[Any]] = field(default_factory=dict[str, "list[Any]"])
    """Of -q: value, line number, text by path."""

    def link_state(self, link: str, state: str, bw_gb_s: float | None, number: int, line: str) -> None:
        """Note the state of a link."""
        if int(link) < MAX_LINK:
            self.states[str(int(link))] = [state, bw_gb_s, number, _short(line)]

    def count(self, link: str, label: str, value: float, number: int, line: str) -> None:
        """Note a counter; another reading of the same one is a later moment."""
        of_link = self.counters.setdefault(str(int(link)), {}) if int(link) < MAX_LINK else None
        name = " ".join(label.lower().split())
        if of_link is None or (name not in of_link and len(of_link) >= MAX_COUNTERS):
            return
        readings = of_link.setdefault(name, [])
        if len(readings) >= MAX_READINGS:
            del readings[-1]
        readings.append([value, number, _short(line)])

    def fact(self, path: str, value: str, number: int, line: str) -> None:
        """Note a value of -q."""
        if path in self.facts or len(self.facts) < MAX_FACTS:
            self.facts[path] = [clean_text(value, 100), number, _short(line)]


class State:
    """What was found in one file so far."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._gpus: dict[Hashable, Record] = {}
        self._n_of_form: dict[str, int] = {}
        self.matrices: list[dict[str, Any]] = []
        self.failures: list[list[Any]] = []
        self.forms: set[str] = set()
        self.notes: list[str] = []

    def gpu(self, form: str, key: int | str) -> Record:
        """The GPU of this number or bus id; the same one when it is told of again."""
        known = self._gpus.get((form, key))
        if known is None:
            known = self._new(form)
            known.index = key if isinstance(key, int) else None
            known.bus = key if isinstance(key, str) else None
            if len(self._gpus) < MAX_GPUS:
                self._gpus[form, key] = known
        return known

    def anonymous(self, form: str) -> Record:
        """One more GPU that the text does not name."""
        made = self._new(form)
        if len(self._gpus) < MAX_GPUS:
            self._gpus[form, None, made.ordinal] = made
        return made

    def _new(self, form: str) -> Record:
        ordinal = self._n_of_form.get(form, 0)
        self._n_of_form[form] = ordinal + 1
        if ordinal == MAX_GPUS:
            self.notes.append(f"only the first {MAX_GPUS} GPUs were read")
        return Record(form, ordinal)

    def failure(self, number: int, line: str, bus: str) -> None:
        """Note a sentence that says that a GPU is lost."""
        if len(self.failures) < MAX_FAILURES:
            self.failures.append([bus, number, _short(line)])
            self.forms.add("failure")

    def matrix(self, kind: str, columns: int) -> dict[str, Any]:
        """Begin a table over the GPUs of a node."""
        made: dict[str, Any] = {"kind": kind, "columns": columns, "rows": {}}
        if len(self.matrices) < MAX_MATRICES:
            self.matrices.append(made)
        return made

    def answer(self) -> dict[str, Any]:
        """All of it, JSON-able. A GPU that is only named is one that was seen."""
        return {
            "gpus": [asdict(record) for record in self._gpus.values() if _says_something(record)],
            "matrices": [matrix for matrix in self.matrices if matrix["rows"] and matrix["kind"]],
            "failures": self.failures,
            "forms": sorted(self.forms),
            "notes": self.notes,
        }


def _says_something(record: Record) -> bool:
    return bool(
        record.states or record.counters or record.facts or record.inactive or record.lost or record.uuid or record.bus
    )


def _short(line: str) -> str:
    return line[:MAX_TEXT_CHARS]
