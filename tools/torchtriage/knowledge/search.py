"""Find entries by words: BM25 over title, keywords, and the texts that people and logs use."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from torchtriage.knowledge.entries import split_document
from torchtriage.knowledge.load import cache_folder

if TYPE_CHECKING:
    from torchtriage.knowledge.load import Playbook

# Robertson & Zaragoza 2009: the usual k1 and b; a title or an id weighs like three mentions in the text.
_K1, _B, _TITLE_WEIGHT = 1.2, 0.75, 3
_WORD = re.compile(r"[a-z][a-z0-9_]+|\d{2,}")
_STOP_TEXT = (
    "the a an and or of to in on at is are was were be been it its this that these those with without for "
    "from by as not no than then when while which who what how why all any one two each other another can "
    "may will would should does do did has have had if but so only also into over after before there here "
    "their they them he she we you your our my me i "
)
_STOP = frozenset(_STOP_TEXT.split())
MAX_QUERY_WORDS = 400


def words(text: str) -> list[str]:
    """Lower-case words, with compound identifiers also in their parts."""
    found: list[str] = []
    for word in _WORD.findall(text.lower().replace("-", " ")):
        if word in _STOP:
            continue
        found.append(_stem(word))
        if "_" in word:
            found.extend(_stem(p) for p in word.split("_") if len(p) > 2 and p not in _STOP)
    return found


def _stem(word: str) -> str:
    """Fold the commonest English endings, enough that "hangs" meets "hang" and "skipped" meets "skip"."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word


def search(playbook: Playbook, query: str, limit: int = 5) -> list[tuple[str, float]]:
    """Ids of the entries that fit ``query`` best, with BM25 scores, best first."""
    index = _search_index(playbook)
    wanted = list(dict.fromkeys(words(query)))[:MAX_QUERY_WORDS]
    n_entries = len(index)
    if not n_entries:
        return []
    mean_length = sum(sum(c.values()) for c in index.values()) / n_entries
    containing = Counter(term for counts in index.values() for term in counts)
    scores: dict[str, float] = {}
    for entry_id, counts in index.items():
        length = sum(counts.values())
        score = 0.0
        for term in wanted:
            count = counts.get(term, 0)
            if count:
                idf = math.log(1 + (n_entries - containing[term] + 0.5) / (containing[term] + 0.5))
                score += idf * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length / mean_length))
        if score > 0:
            scores[entry_id] = score
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]


def _search_index(playbook: Playbook) -> dict[str, dict[str, int]]:
    """Term counts per entry, kept beside the compiled index."""
    path = cache_folder() / f"search-{playbook.key}.json"
    try:
        kept: Any = json.loads(path.read_bytes())
        if isinstance(kept, dict):
            return kept  # pyright: ignore[reportUnknownVariableType]
    except (OSError, ValueError, RuntimeError):
        pass
    index: dict[str, dict[str, int]] = {}
    for entry in playbook.entries.values():
        _, sections = split_document(playbook.text(entry), entry.path)
        weighty = f"{entry.id} {entry.title} {' '.join(entry.keywords)} " * _TITLE_WEIGHT
        logged = " ".join(t for c in entry.conditions() for t in c.texts)
        rest = " ".join(sections[h] for h in ("What you see", "Why it happens", "Prove it", "Known from"))
        index[entry.id] = dict(Counter(words(f"{weighty} {logged} {rest}")))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
    except OSError:
        return index
    return index
