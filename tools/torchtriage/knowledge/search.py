"""Find entries by words: BM25 over title, keywords, and the texts that people and logs use.

What is no failure stands in the same index, so that a text can fit it better than any entry.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from typing import TYPE_CHECKING, TypedDict, cast

from torchtriage.knowledge.background import backgrounds_key, load_backgrounds
from torchtriage.knowledge.cached import keep, read_kept
from torchtriage.knowledge.entries import split_document
from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchtriage.knowledge.load import Playbook

# Robertson & Zaragoza 2009: the usual k1 and b; a title or an id weighs like three mentions in the text.
_K1, _B, _TITLE_WEIGHT = 1.2, 0.75, 3
# A longer number (a count, a port, a time) is another in every job, and meets its like by chance.
_WORD = lazy_re(r"[a-z][a-z0-9_]+|(?<!\d)\d{2,3}(?!\d)")
_STOP_TEXT = (
    "the a an and or of to in on at is are was were be been it its this that these those with without for "
    "from by as not no than then when while which who what how why all any one two each other another can "
    "may will would should does do did has have had if but so only also into over after before there here "
    "their they them he she we you your our my me i "
)
_STOP = frozenset(_STOP_TEXT.split())
MAX_QUERY_WORDS = 400
MAX_QUERY_LINES = 5000
MAX_LINE_CHARS = 4000
INDEX_VERSION = "10"
NORMAL, ELSEWHERE = "normal/", "elsewhere/"
"""How the names of things that are no failure begin in :func:`scores`."""


def words(text: str) -> list[str]:
    """Lower-case words, with compound identifiers also in their parts."""
    found: list[str] = []
    known: dict[str, list[str]] = {}
    for word in _WORD.findall(text.lower().replace("-", " ")):
        if word not in known:
            known[word] = _folded(word)
        found.extend(known[word])
    return found


def _folded(word: str) -> list[str]:
    """What a word counts as: its stem and those of its parts; nothing where it says nothing."""
    if word in _STOP:
        return []
    parts = [p for p in word.split("_") if len(p) > 2 and p not in _STOP] if "_" in word else []
    return [_stem(word), *map(_stem, parts)]


def _stem(word: str) -> str:
    """Fold the commonest English endings, enough that "hangs" meets "hang" and "skipped" meets "skip"."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    return word


def search(playbook: Playbook, query: str, limit: int = 5) -> list[tuple[str, float]]:
    """Ids of the entries that fit ``query`` best, with BM25 scores, best first."""
    found = [item for item in scores(playbook, query).items() if item[0] in playbook.entries]
    return sorted(found, key=lambda item: (-item[1], item[0]))[:limit]


def scores(playbook: Playbook, query: str | Mapping[str, float]) -> dict[str, float]:
    """BM25 scores of all entries, and of all that is no failure, that share a word with ``query``.

    Args:
        playbook: the entries.
        query: a text, or words as :func:`words` gives them with what each counts, from 0 to 1.
    """
    wanted = dict.fromkeys(words(query), 1.0) if isinstance(query, str) else query
    return _bm25(_search_index(playbook), dict(list(wanted.items())[:MAX_QUERY_WORDS]))


def telling_lines(playbook: Playbook, entry_id: str, text: str, limit: int) -> list[tuple[int, str]]:
    """The lines of a text (numbered from 1) that speak most for an entry: by its rarest words, in order."""
    index = _search_index(playbook)
    n_entries = len(index["lengths"])
    place = list(index["lengths"]).index(entry_id)
    weights: dict[str, float] = {}
    weighed: list[tuple[float, int, str]] = []
    for number, line in enumerate(text.split("\n")[:MAX_QUERY_LINES], start=1):
        weight = 0.0
        for word in set(words(line[:MAX_LINE_CHARS])):
            if word not in weights:
                holding = _counts(index["postings"].get(word, ""))
                holds = any(where == place for where, _ in holding)
                weights[word] = math.log(n_entries / len(holding)) if holds else 0.0
            weight += weights[word]
        if weight:
            weighed.append((weight, number, line))
    best = sorted(weighed, key=lambda item: (-item[0], item[1]))[:limit]
    return sorted((number, line) for _, number, line in best)


def rank_texts(texts: dict[str, str], query: str) -> list[str]:
    """Names of texts, nearest to the query first; plain BM25, without those that share no word with it."""
    counts = {name: Counter(words(text)) for name, text in texts.items()}
    scores = _bm25(_inverted(counts), dict.fromkeys(words(query), 1.0))
    return sorted(scores, key=lambda name: (-scores[name], name))


class _Index(TypedDict):
    """Term counts of some texts, by term."""

    lengths: dict[str, int]
    postings: dict[str, str]
    """By term, "place count place count ...": places in ``lengths``. Text, as few terms are ever asked for."""


def _inverted(texts: Mapping[str, Mapping[str, int]]) -> _Index:
    postings: dict[str, list[str]] = {}
    for place, counts in enumerate(texts.values()):
        for term, count in counts.items():
            postings.setdefault(term, []).append(f"{place} {count}")
    return {
        "lengths": {name: sum(counts.values()) for name, counts in texts.items()},
        "postings": {term: " ".join(found) for term, found in postings.items()},
    }


@functools.lru_cache(maxsize=4 * MAX_QUERY_WORDS)
def _counts(postings: str) -> tuple[tuple[int, int], ...]:
    """The texts that hold a term, by their places, and how often each does."""
    numbers = map(int, postings.split())
    return tuple(zip(numbers, numbers, strict=True))


def _bm25(index: _Index, wanted: Mapping[str, float]) -> dict[str, float]:
    lengths = index["lengths"]
    mean_length = sum(lengths.values()) / max(1, len(lengths)) or 1.0
    norms = [_K1 * (1 - _B + _B * length / mean_length) for length in lengths.values()]
    scores = [0.0] * len(lengths)
    for term, weight in wanted.items():
        holding = _counts(index["postings"].get(term, ""))
        idf = math.log(1 + (len(lengths) - len(holding) + 0.5) / (len(holding) + 0.5))
        for place, count in holding:
            scores[place] += weight * idf * count * (_K1 + 1) / (count + norms[place])
    return {name: score for name, score in zip(lengths, scores, strict=True) if score}


_loaded: dict[str, _Index] = {}


def _search_index(playbook: Playbook) -> _Index:
    """Index of the entries, their reports included; read or made once per process."""
    if playbook.key not in _loaded:
        _loaded[playbook.key] = _load_index(playbook)
    return _loaded[playbook.key]


def _load_index(playbook: Playbook) -> _Index:
    """The index as it is kept beside the compiled playbook, or made anew and kept."""
    root = playbook.root.parent
    key = hashlib.blake2b(f"{playbook.key}{backgrounds_key(root)}".encode(), digest_size=16).hexdigest()
    name = f"search{INDEX_VERSION}-{key}.json"
    kept = read_kept(name)
    if isinstance(kept, dict) and kept.keys() == _Index.__annotations__.keys():
        return cast("_Index", kept)
    backgrounds = load_backgrounds(root)
    others = {NORMAL + thing.id: thing.words for thing in backgrounds.normal.values()}
    others |= {ELSEWHERE + thing.id: thing.words for thing in backgrounds.elsewhere.values()}
    texts = {thing: Counter(words(text)) for thing, text in others.items()}
    for entry in playbook.entries.values():
        _, sections = split_document(playbook.text(entry), entry.path)
        logged = " ".join(t for c in entry.conditions() for t in c.texts)
        rest = " ".join(sections[h] for h in ("What you see", "Why it happens", "Prove it", "Fix it", "Known from"))
        counts = texts[entry.id] = Counter(words(f"{logged} {rest} {' '.join(entry.reports)}"))
        for word, count in Counter(words(f"{entry.id} {entry.title} {' '.join(entry.keywords)}")).items():
            counts[word] += _TITLE_WEIGHT * count
    index = _inverted(texts)
    keep(name, index)
    return index
