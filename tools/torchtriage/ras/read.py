"""Read one RAS answer, text or JSON, into communicators with the statements made about their ranks. Never judges.

Stdlib only: runs inside the isolated worker. Layouts are those of NCCL 2.24 to 2.29 (source: NCCL src/ras/
client_support.cc and recorded answers of 2.28.9). Rank numbers are those of the communicator, so process id and host
travel with them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchtriage.artefacts.streams import open_stream, read_bounded
from torchtriage.artefacts.view import load_view
from torchtriage.errors import UnreadableError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEXT_BYTES = 64 << 20
MAX_LINE_CHARS = 1024
MAX_COMMUNICATORS = 65_536
MAX_MEMBERS = 200_000

_HEADING = re.compile(r"#(\d{1,6})-(\d{1,6}) \(([0-9a-f]{1,16})\) ([A-Z]{3,16})$")
_JOB_HEADING = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT)$")
_ROW = re.compile(r"\s*(\d+)\s+(\d+)\s+(\d+)\s+([\d\-]+)\s+(\d+)\s+(\d+)\s+([A-Z]+)\s+([A-Z+]+)$")
_PROCESS = (
    r"(?: -- GPU (?P<gpu>\d{1,4}(?: \(NVML \d{1,4}\))?) managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,64})"
    r"| -- \[process information not found\])"
)
_RANK = re.compile(rf"  Rank (?P<rank>\d{{1,7}})(?: (?P<says>[a-zA-Z][^\[]{{0,120}}?))?{_PROCESS}$")
_RANKS = re.compile(
    r"  (?P<n>\d{1,7}) ranks? (?P<says>ha(?:s|ve) (?:status|launched|not launched)\b.{0,80}|reported .{1,80})$"
)
_JOB = re.compile(r"\s+\d{1,7}\s+\d[\d\-]{0,15}\s+\d[\d\-]{0,15}\s+\d{1,8}\s+(\d{1,8})$")
_DIFFERENT = re.compile(r"  Communicator ranks have different (?P<what>[\w ]{1,40}?)(?: operation counts)?$")
_ERROR_INTRO = re.compile(r"  (?P<phase>Initialization|Asynchronous) errors? on \d{1,7} ranks?:?$")
_MISSING_INTRO = re.compile(r"  Missing communicator data from \d{1,7} ")
_DEAD_PROCESS = re.compile(r"  Process (?P<pid>\d{1,10}) on node (?P<host>\S{1,64})(?: managing GPUs? .*)?$")
_LAUNCHED = re.compile(r"ha(?:s|ve) launched up to operation (\d{1,18})$")
_NOT_LAUNCHED = re.compile(r"ha(?:s|ve) not launched any operations$")
_STATUS = re.compile(r"ha(?:s|ve) status ([A-Z]{2,16})$")
_REPORTED = re.compile(r"reported (.{1,80})$")


def read_task(path: str, compression: str | None, args: dict[str, Any]) -> dict[str, Any]:
    """Worker task: one RAS answer, JSON-able.

    Returns:
        ``format``, ``notes``, ``nccl_version``, ``timestamp``, ``n_gpus`` (of the job, 0 if not said),
        ``rows`` (the table: one per kind of communicator),
        ``communicators`` and ``processes`` (those that do not answer). A communicator of a text answer has
        ``statements``: what is said (operation and count, status, error or missing), of how many ranks, and the ranks
        that are listed for it; one of a JSON answer has ``ranks`` with counts and flags. Line numbers or JSON Pointers
        and the raw text or value come with everything.

    Raises:
        UnreadableError: it is not a RAS answer.
    """
    if args["format"] == "json":
        view, note = load_view(path, compression, "json")
        answer = read_json(view)
        if note:
            answer["notes"].append(note)
        return answer
    with open_stream(Path(path), compression) as stream:
        data, damaged = read_bounded(stream, MAX_TEXT_BYTES)
    answer = read_text(data.decode("utf-8", errors="replace"))
    if damaged or len(data) >= MAX_TEXT_BYTES:
        answer["notes"].append("the answer is damaged or too long; what came before that was read")
    return answer


def _empty(form: str) -> dict[str, Any]:
    return {
        "format": form,
        "notes": [],
        "nccl_version": "",
        "timestamp": "",
        "n_gpus": 0,
        "rows": [],
        "communicators": [],
        "processes": [],
    }


def read_text(text: str) -> dict[str, Any]:
    """Read the text of STATUS or VERBOSE STATUS."""
    answer = _empty("text")
    reader = _TextReader(answer)
    for number, line in enumerate(text.split("\n"), start=1):
        reader.line(number, line.rstrip("\r")[:MAX_LINE_CHARS])
    if not (answer["rows"] or answer["communicators"] or answer["nccl_version"] or answer["processes"]):
        raise UnreadableError("holds no answer of the RAS service")
    if not reader.reached_warnings:
        answer["notes"].append("the answer ends before its last section; communicators may be missing from it")
    return answer


class _TextReader:
    """Follows the layout line by line: headings of communicators, then statements, then ranks of a statement."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.reached_warnings = False
        self._communicator: dict[str, Any] | None = None
        self._job_heading = ""
        self._about = ""
        self._statement: dict[str, Any] | None = None
        self._by_hash: dict[str, dict[str, Any]] = {}
        self._members_left = MAX_MEMBERS

    def line(self, number: int, line: str) -> None:
        """Take the next line."""
        if line.startswith("  "):
            self._detail(number, line)
        elif line.startswith("NCCL version "):
            self.answer["nccl_version"] = line.split()[2][:32] if len(line.split()) > 2 else ""
        elif line.startswith("Warnings"):
            self.reached_warnings = True
        elif heading := _HEADING.match(line):
            self._open(heading, number, line)
        elif heading := _JOB_HEADING.match(line):
            self._communicator, self._job_heading, self._statement = None, heading[1], None
        if row := _ROW.match(line):
            self._row(row, number, line)
        elif job := _JOB.match(line):
            self.answer["n_gpus"] = int(job[1])

    def _row(self, row: re.Match[str], number: int, line: str) -> None:
        if len(self.answer["rows"]) < MAX_COMMUNICATORS and all(len(row[k]) <= 9 for k in (1, 2, 5)):
            self.answer["rows"].append(
                {"group": int(row[1]), "n_communicators": int(row[2]), "size": int(row[5]), "status": row[7],
                 "errors": row[8], "where": number, "text": line}
            )  # fmt: skip

    def _open(self, heading: re.Match[str], number: int, line: str) -> None:
        self._job_heading, self._about, self._statement = "", "", None
        key = heading[3].zfill(16)
        self._communicator = self._by_hash.get(key)
        if self._communicator is None:
            sizes = [row["size"] for row in self.answer["rows"] if row["group"] == int(heading[1])]
            self._communicator = {"hash": key, "size": sizes[0] if sizes else None, "statements": [], "where": number}
            self._communicator["text"] = line
            if len(self._by_hash) < MAX_COMMUNICATORS:
                self._by_hash[key] = self._communicator
                self.answer["communicators"].append(self._communicator)

    def _detail(self, number: int, line: str) -> None:
        communicator = self._communicator
        if communicator is None:
            process = _DEAD_PROCESS.match(line)
            if process is not None and self._job_heading in ("INCOMPLETE", "DEAD") and self._take():
                self.answer["processes"].append(
                    {"pid": int(process["pid"]), "host": process["host"], "dead": self._job_heading == "DEAD",
                     "where": number, "text": line}
                )  # fmt: skip
        elif different := _DIFFERENT.match(line):
            self._about, self._statement = different["what"].strip(), None
        elif error := _ERROR_INTRO.match(line):
            self._about, self._statement = error["phase"].lower(), None
        elif _MISSING_INTRO.match(line):
            self._about, self._statement = "missing", None
            self._state("missing", number, line, None)
        elif several := _RANKS.match(line):
            self._state(several["says"], number, line, int(several["n"]))
        elif rank := _RANK.match(line):
            if rank["says"]:
                self._state(rank["says"], number, line, 1)
            if self._statement is not None and self._take():
                self._statement["members"].append(_member(rank, number, line))

    def _take(self) -> bool:
        self._members_left -= 1
        return self._members_left >= 0

    def _state(self, says: str, number: int, line: str, n: int | None) -> None:
        """Start a statement; ranks listed on the lines after it belong to it."""
        if self._communicator is None or not self._take():
            return
        statement: dict[str, Any] = {"kind": "", "about": self._about, "value": None, "n": n, "members": []}
        if launched := _LAUNCHED.match(says):
            statement.update(kind="count", value=int(launched[1]))
        elif _NOT_LAUNCHED.match(says):
            statement.update(kind="count", value=0)
        elif status := _STATUS.match(says):
            statement.update(kind="status", value=status[1])
        elif reported := _REPORTED.match(says):
            statement.update(kind="error", value=reported[1])
        elif says == "missing":
            statement.update(kind="missing")
        else:
            self._statement = None
            return
        statement.update(where=number, text=line)
        self._statement = statement
        self._communicator["statements"].append(statement)


def _member(found: re.Match[str], number: int, line: str) -> dict[str, Any]:
    pid = found["pid"]
    return {
        "rank": int(found["rank"]),
        "pid": int(pid) if pid else None,
        "host": found["host"],
        "where": number,
        "text": line,
    }


def read_json(view: Any) -> dict[str, Any]:
    """Read the JSON form (protocol 3, or 2 with SET FORMAT json)."""
    top = _mapping(view)
    communicators = _list(top.get("communicators")) if top is not None else None
    if top is None or communicators is None:
        raise UnreadableError("holds JSON, but not an answer of the RAS service")
    answer = _empty("json")
    answer["nccl_version"] = _text(top.get("nccl_version"), 32)
    answer["timestamp"] = _text(top.get("timestamp"), 32)
    left = MAX_MEMBERS
    for number, value in enumerate(communicators[:MAX_COMMUNICATORS]):
        communicator = _mapping(value)
        if communicator is None:
            answer["notes"].append(f"communicator {number} is not a record; it was left out")
            continue
        ranks = (_list(communicator.get("ranks")) or [])[: max(0, left)]
        missing = (_list(communicator.get("missing_ranks")) or [])[: max(0, left)]
        left -= len(ranks) + len(missing)
        here = f"/communicators/{number}"
        answer["communicators"].append(
            {
                "hash": _text(communicator.get("hash"), 24).lower().removeprefix("0x").zfill(16),
                "size": _number(communicator.get("size")),
                "ranks": [r for r in (_rank(v, f"{here}/ranks/{i}") for i, v in enumerate(ranks)) if r],
                "missing": [r for r in (_rank(v, f"{here}/missing_ranks/{i}") for i, v in enumerate(missing)) if r],
            }
        )
    return answer


def _rank(value: Any, pointer: str) -> dict[str, Any] | None:
    rank = _mapping(value)
    number = _number(rank.get("rank")) if rank is not None else None
    if rank is None or number is None:
        return None
    counts = _mapping(rank.get("collective_counts")) or {}
    flags = _mapping(rank.get("status"))
    return {
        "rank": number,
        "pid": _number(rank.get("pid")),
        "host": _text(rank.get("host"), 64) or None,
        "where": pointer,
        "counts": {k[:40]: n for k, n in _counted(counts)},
        "status": None if flags is None else _status_word(flags),
        "flags": None if flags is None else _scalars(flags),
        "init_state": None if flags is None else _number(flags.get("init_state")),
        "async_error": None if flags is None else _number(flags.get("async_error")),
        "dead": rank.get("considered_dead") is True,
    }


def _counted(counts: Mapping[Any, Any]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for key in list(counts)[:32]:
        number = _number(counts[key])
        if isinstance(key, str) and number is not None:
            found.append((key, number))
    return found


def _scalars(flags: Mapping[Any, Any]) -> dict[str, Any] | None:
    """The flags as they stand, for quoting; None when they are not a few plain values."""
    plain = len(flags) <= 16 and all(
        isinstance(k, str) and len(k) <= 40 and (isinstance(v, bool) or _number(v) is not None)
        for k, v in flags.items()
    )
    return dict(flags) if plain else None


def _status_word(flags: Mapping[Any, Any]) -> str:
    """The status as the text form names it (client_support.cc: abort before finalize before init)."""
    if flags.get("abort_flag") is True:
        return "ABORT"
    if flags.get("finalize_called") is True or flags.get("destroy_flag") is True:
        return "FINALIZE"
    return "RUNNING" if _number(flags.get("init_state")) == 0 else "INIT"


def _mapping(value: Any) -> Mapping[Any, Any] | None:
    return cast("Mapping[Any, Any]", value) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any] | None:
    return cast("list[Any]", value) if isinstance(value, list) else None


def _text(value: Any, limit: int) -> str:
    return value[:limit] if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None
