"""Time stamps of log lines as seconds.

A stamp without a year gets the year of the other stamps, or 1970 if none has one.
"""

from __future__ import annotations

import calendar
import re

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
# Formats by the name of the group that finds them in ``torchtriage.logs.prefixes``.
_FORMATS = {
    "iso": re.compile(
        r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T_ ]" + _CLOCK + r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
    ),
    # glog: E1130 is November 30; PyTorch prints the month without a leading zero (E205 is February 5)
    "glog": re.compile(r"[EWIFD](?P<month>\d{1,2})(?P<day>\d\d) " + _CLOCK),
    "syslog": re.compile(r"(?P<name>[A-Z][a-z]{2}) (?P<day>[ \d]\d) " + _CLOCK),
}


def year_of(stamp: tuple[str, str]) -> int | None:
    """The year that a stamp names, if it names one."""
    kind, text = stamp
    return int(text[:4]) if kind == "iso" and text[:4].isdigit() else None


def seconds_of(stamp: tuple[str, str], default_year: int) -> float | None:
    """Seconds since the epoch; a stamp without a zone is read as UTC. None when it is no possible time."""
    kind, text = stamp
    if kind == "epoch":
        whole, _, fraction = text.partition(".")
        seconds = float(f"{whole[:10]}.{fraction or '0'}")
        return seconds + int(whole[10:13]) / 1000 if len(whole) == 13 else seconds
    match = _FORMATS[kind].search(text)
    if match is None:
        return None
    found = match.groupdict()
    month = _month(found["name"]) if kind == "syslog" else int(found["month"])
    year = int(found.get("year") or default_year)
    day, hour, minute, second = (int(found[name]) for name in ("day", "hour", "minute", "second"))
    if not (1970 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    fraction = float(f"0.{found['fraction'] or '0'}")
    return calendar.timegm((year, month, day, hour, minute, second)) + fraction - _offset_s(found.get("zone"))


def _month(name: str) -> int:
    return _MONTHS.index(name) + 1 if name in _MONTHS else 0


def _offset_s(zone: str | None) -> int:
    if not zone or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -offset if zone[0] == "-" else offset
