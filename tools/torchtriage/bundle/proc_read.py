"""Read the facts of a process from a bundle; believes nothing and judges nothing.

Stdlib only: runs inside the isolated worker. The form is that of :class:`torchtriage.bundle.proc_model.ProcFacts`.
"""

from __future__ import annotations

import json
from typing import Any, cast

from torchtriage.artefacts.clean import clean_text
from torchtriage.artefacts.view import load_view
from torchtriage.errors import UnreadableError

MAX_CHARS = 512
MAX_THREADS = 64
_WORDS = ("name", "role", "job", "host", "state", "wchan", "tracer_name")
_WHOLE = ("pid", "start_ticks", "ppid", "rank", "local_rank", "rank_pid", "n_threads", "rss_bytes", "tracer_pid")
_REAL = ("time_s", "cpu_s", "main_thread_cpu_s")
_QUOTED = ("state", "wchan", "call", "cpu_s", "tracer_pid", "memory")
MAX_WHOLE = 1 << 62


def read_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: the facts of one process, each of the type that it should have, or None.

    ``quotes`` has, for what may be quoted, the compact JSON at ``/NAME``; ``call`` and ``memory`` are mappings or None.

    Raises:
        UnreadableError: these are no facts of a process.
    """
    del args
    view, note = load_view(path, compression, "json")
    if not isinstance(view, dict):
        raise UnreadableError("holds no facts of a process")
    facts = cast("dict[str, Any]", view)
    found: dict[str, Any] = {name: _word(facts.get(name)) for name in _WORDS}
    found |= {name: _whole(facts.get(name)) for name in _WHOLE}
    found |= {name: _real(facts.get(name)) for name in _REAL}
    if found["pid"] is None or not found["state"]:
        raise UnreadableError("holds no facts of a process: pid or state is missing")
    found["tracer_is_ours"] = facts.get("tracer_is_ours") is True
    call = _mapping(facts.get("call"))
    found["call"] = call and {
        **{key: _word(call.get(key)) for key in ("name", "path", "path_kind", "file_system")},
        "network_file_system": call.get("network_file_system") is True,
    }
    memory = _mapping(facts.get("memory"))
    found["memory"] = memory and {
        **{
            key: _whole(memory.get(key)) for key in ("limit_bytes", "current_bytes", "inactive_file_bytes", "oom_kills")
        },
        "path": _word(memory.get("path")),
        "frozen": memory.get("frozen") is True,
    }
    found["quotes"] = {name: _compact(facts[name]) for name in _QUOTED if facts.get(name) is not None}
    found["notes"] = [note] if note else []
    return found


def _mapping(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _word(value: Any) -> str | None:
    return clean_text(value[: MAX_CHARS * 4], MAX_CHARS) if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_WHOLE else None


def _real(value: Any) -> float | None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MAX_WHOLE
    return float(value) if fits else None


def _compact(value: Any) -> str:
    return clean_text(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
