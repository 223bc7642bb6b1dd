"""Time stamps of log lines as seconds.

A stamp without a year gets the year of the other stamps, or 1970 if none has one; a stamp that is only a time of day
gets the day of the others. Where such stamps jump back within a log, a new year or a new day has begun.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass, field

from torchtriage.lazy_re import lazy_re

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
# Formats by the name of the kind that ``torchtriage.logs.scan.prefixes`` gives them.
_FORMATS = {
    "iso": lazy_re(
        r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T_ ]" + _CLOCK + r" ?(?P<zone>Z|[+-]\d\d:?(?:\d\d)?)?"
    ),
    # glog: E1130 is November 30; PyTorch prints the month without a leading zero (E205 is February 5)
    "glog": lazy_re(r"[EWIFD](?P<month>\d{1,2})(?P<day>\d\d) " + _CLOCK),
    "syslog": lazy_re(r"(?P<name>[A-Z][a-z]{2}) (?P<day>[ \d]\d) " + _CLOCK),
    "ctime": lazy_re(r"[A-Z][a-z]{2} (?P<name>[A-Z][a-z]{2}) (?P<day>[ \d]\d) " + _CLOCK + r" (?P<year>\d{4})"),
    # as transformers' examples print it; a first number above 12 is a day
    "mdy": lazy_re(r"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4}),? " + _CLOCK),
    "monthday": lazy_re(r"(?P<month>\d\d)[-/](?P<day>\d\d) " + _CLOCK),
    "clock": lazy_re(_CLOCK),
}
_YEARLESS = frozenset({"glog", "syslog", "monthday"})
_WHOLE = frozenset({"iso", "epoch", "ctime", "mdy"})
_DAY_S = 86400
_YEAR_JUMP_S = 300 * _DAY_S
_DAY_JUMP_S = _DAY_S // 2


def year_of(stamp: tuple[str, str]) -> int | None:
    """The year that a stamp names, if it names one."""
    kind, text = stamp
    if kind == "iso" and text[:4].isdigit():
        return int(text[:4])
    if kind in ("ctime", "mdy") and (match := _FORMATS[kind].search(text)):
        return int(match["year"])
    return None


def seconds_of(stamp: tuple[str, str], default_year: int) -> float | None:
    """Seconds since the epoch; a stamp without a zone is read as UTC. None when it is no possible time.

    A time of day alone gives the seconds since midnight.
    """
    kind, text = stamp
    if kind == "epoch":
        return _epoch(text)
    match = _FORMATS[kind].search(text)
    if match is None:
        return None
    found = match.groupdict()
    hour, minute, second = (int(found[name]) for name in ("hour", "minute", "second"))
    fraction = float(f"0.{found['fraction'] or '0'}")
    if hour >= 24 or minute >= 60 or second > 60:
        return None
    if kind == "clock":
        return hour * 3600 + minute * 60 + second + fraction
    month = _month(found["name"]) if "name" in found else int(found["month"])
    year, day = int(found.get("year") or default_year), int(found["day"])
    if kind == "mdy" and month > 12:
        month, day = day, month
    if not (1970 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31):
        return None
    return calendar.timegm((year, month, day, hour, minute, second)) + fraction - _offset_s(found.get("zone"))


@dataclass
class StampReader:
    """Reads the stamps of one log in order."""

    default_year: int
    default_day_s: float = 0.0
    """The day of stamps that are a time of day, as the seconds at which it starts."""
    dated: bool = False
    """Some stamps of the log have a date; a time of day alone is then a duration or somebody else's clock."""
    known: dict[tuple[str, str], float | None] = field(default_factory=dict[tuple[str, str], "float | None"])
    """Whole stamps that were read already; logs of many ranks repeat them."""
    _last: float | None = None

    def read(self, stamp: tuple[str, str]) -> float | None:
        """Seconds since the epoch."""
        kind, _ = stamp
        if kind == "clock" and self.dated:
            return None
        if kind in _WHOLE:
            if stamp not in self.known:
                self.known[stamp] = seconds_of(stamp, self.default_year)
            seconds = self.known[stamp]
        else:
            seconds = seconds_of(stamp, self.default_year)
        if seconds is None:
            return None
        last = self._last
        if kind == "clock":
            seconds += self.default_day_s
            if last is not None and seconds < last - _DAY_JUMP_S:
                self.default_day_s += _DAY_S
                seconds += _DAY_S
        elif kind in _YEARLESS and last is not None and seconds < last - _YEAR_JUMP_S:
            seconds = seconds_of(stamp, self.default_year + 1) or seconds
            self.default_year += 1
        self._last = seconds
        return seconds


def _epoch(text: str) -> float:
    whole, _, fraction = text.partition(".")
    seconds = float(f"{whole[:10]}.{fraction or '0'}")
    below = whole[10:]
    return seconds + int(below) / 10 ** len(below) if below else seconds


def _month(name: str) -> int:
    return _MONTHS.index(name) + 1 if name in _MONTHS else 0


def _offset_s(zone: str | None) -> int:
    if not zone or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    offset = int(digits[:2]) * 3600 + int(digits[2:] or 0) * 60
    return -offset if zone[0] == "-" else offset
