"""What NVLinks a GPU should have and what counters and states mean: skill/hardware/{gpus,nvlink_health}.yaml."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.locate import data_root

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchtriage.nvlink.xid_catalogue import Action

Level = Literal["ok", "degraded", "failed"]


@dataclass(frozen=True)
class Model:
    """A kind of GPU."""

    name: re.Pattern[str]
    links: int
    gb_s: float | None = None
    on_board: bool = True
    bridge_links: int = 1
    mesh: bool = False
    """Linked directly: a board may wire fewer."""


@dataclass(frozen=True)
class Counter:
    """A counter that is judged, or a rate; ``growth`` and ``floor`` are of counters, ``limit`` is of rates."""

    name: str
    action: Action
    growth: int = 1
    floor: int = 1
    limit: float = 0.0


@dataclass(frozen=True)
class Fec:
    """Limits of the histogram of forward error correction."""

    label: re.Pattern[str]
    deep_bin: int
    deep_words: int
    deep_growth: int
    repaired_share: float
    min_words: int
    action: Action


@dataclass(frozen=True)
class Meaning:
    """What a value of -q says."""

    kind: str
    means: str
    good: frozenset[str]
    bad: Mapping[str, tuple[Level, Action]]
    other: tuple[Level, Action] | None

    def of(self, value: str) -> tuple[Level, Action] | None:
        """How bad a value is; None for one that is good or says nothing."""
        told = value.strip().lower()
        if told in self.bad:
            return self.bad[told]
        if "positive" in self.bad and told.isdigit() and int(told) > 0:
            return self.bad["positive"]
        return self.other if self.good and told not in self.good else None


@dataclass(frozen=True)
class HealthCatalogue:
    """All of it."""

    models: tuple[Model, ...]
    counters: Mapping[str, Counter]
    """By the words that are printed."""
    times_peers: int
    alone_times: int
    saturates: frozenset[int]
    rates: Mapping[str, Counter]
    rate_floor: float
    fec: Fec
    shown: re.Pattern[str]
    """Counters that are known and not judged."""
    slow_share: float
    states: Mapping[str, Meaning]
    """By path."""
    mig_paths: tuple[str, ...]
    fabric_done: tuple[str, str]
    link_down_action: Action
    fabric_down_action: Action
    lost_action: Action
    gravity: tuple[Action, ...]

    def model(self, name: str | None) -> Model | None:
        """The kind of a GPU by its product name."""
        return next((model for model in self.models if name and model.name.search(name)), None)

    def gravest(self, actions: Sequence[Action]) -> Action:
        """The one that says most."""
        gravest: Action = "none"
        for action in actions:
            if self.gravity.index(action) > self.gravity.index(gravest):
                gravest = action
        return gravest


@functools.cache
def load_health() -> HealthCatalogue:
    """Both files.

    Raises:
        KnowledgeError: one is missing, no YAML, or lacks what it must have.
    """
    folder = data_root() / "skill" / "hardware"
    gpus, raw = load_yaml(folder / "gpus.yaml"), load_yaml(folder / "nvlink_health.yaml")
    try:
        return _health(gpus["gpus"], raw)
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise KnowledgeError(f"{folder}: gpus.yaml or nvlink_health.yaml is not complete: {error!r}") from error


def _health(gpus: list[dict[str, Any]], raw: dict[str, Any]) -> HealthCatalogue:
    fec: dict[str, Any] = dict(raw["fec"])
    fec["label"] = re.compile(fec["label"])
    return HealthCatalogue(
        models=tuple(_model(each) for each in gpus),
        counters=_by_label(raw["counters"]),
        times_peers=raw["times_peers"],
        alone_times=raw["alone_times"],
        saturates=frozenset(raw["saturates"]),
        rates=_by_label(raw["rates"]),
        rate_floor=float(raw["rate_floor"]),
        fec=Fec(**fec),
        shown=re.compile(raw["shown"]),
        slow_share=raw["slow_share"],
        states={path: _meaning(each) for each in raw["states"] for path in each["paths"]},
        mig_paths=tuple(raw["mig_paths"]),
        fabric_done=(raw["fabric_done"]["path"], raw["fabric_done"]["value"]),
        link_down_action=raw["link_down_action"],
        fabric_down_action=raw["fabric_down_action"],
        lost_action=raw["lost_action"],
        gravity=tuple(raw["gravity"]),
    )


def _model(raw: dict[str, Any]) -> Model:
    given: dict[str, Any] = {**raw, "name": re.compile(raw["name"], re.IGNORECASE)}
    return Model(**given)


def _by_label(raw: dict[str, dict[str, Any]]) -> dict[str, Counter]:
    found: dict[str, Counter] = {}
    for name, given in raw.items():
        limits = {key: value for key, value in given.items() if key != "labels"}
        found.update(dict.fromkeys(given["labels"], Counter(name=name, **limits)))
    return found


def _meaning(raw: dict[str, Any]) -> Meaning:
    def pair(given: list[str]) -> tuple[Level, Action]:
        return cast("Level", given[0]), cast("Action", given[1])

    return Meaning(
        kind=raw["kind"],
        means=raw["means"],
        good=frozenset(str(value).lower() for value in raw.get("good", ())),
        bad={str(value).lower(): pair(given) for value, given in raw.get("bad", {}).items()},
        other=pair(raw["other"]) if "other" in raw else None,
    )
