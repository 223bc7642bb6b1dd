"""The time and host that stand before a kernel message, in the forms of dmesg, /dev/kmsg, syslog and the journal.

Times of different clocks do not compare: seconds since boot are those of one host, a syslog line has no year, and a
time without its zone may be off by hours. So the clock is told with the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.timeline.times import seconds_of

if TYPE_CHECKING:
    import re

Clock = Literal["utc", "local", "syslog", "boot"]
MAX_PREFIX_CHARS = 400

_ISO = lazy_re(
    r"(?<!\d)(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d)?)"
    r"(?: (?P<host>[\w.\-]{1,255}) kernel:)?"
)
_DMESG_T = lazy_re(r"\[([A-Z][a-z]{2} [A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d \d{4})\]")
_BOOT = lazy_re(r"\[ {0,12}(\d{1,10}\.\d{1,9})\]")
_KMSG = lazy_re(r"(?:^|[^\d,])\d{1,6},\d{1,20},(\d{1,18}),[^;]{1,40};")
_SYSLOG = lazy_re(r"(?<![A-Za-z])([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d:\d\d:\d\d)(?: ([\w.\-]{1,255}) kernel:)?")
_LEAP_YEAR = 2000  # stands in for the year that a syslog line lacks
_LEAP_YEAR_BEGINS_S = 946_684_800.0


def when_and_where(prefix: str) -> tuple[float | None, Clock | None, str | None]:
    """(seconds, of which clock, host), as far as the text before a message tells them.

    Seconds are since 1970 on the clocks "utc" and "local", since the year's beginning on "syslog", since boot on
    "boot".
    """
    prefix = prefix[-MAX_PREFIX_CHARS:]
    if (found := _ISO.search(prefix)) is not None:
        seconds = seconds_of(("iso", found["stamp"]), _LEAP_YEAR)
        if seconds is not None:
            return seconds, "utc" if found["zone"] else "local", found["host"]
    if (found := _DMESG_T.search(prefix)) is not None and (seconds := _named_month_s("ctime", found)) is not None:
        return seconds, "local", None
    syslog = _SYSLOG.search(prefix)
    host = syslog[4] if syslog is not None else None
    if (found := _BOOT.search(prefix)) is not None:
        return float(found[1]), "boot", host
    if (found := _KMSG.search(prefix)) is not None:
        return int(found[1]) / 1e6, "boot", host
    if syslog is not None and (seconds := _named_month_s("syslog", syslog)) is not None:
        return seconds - _LEAP_YEAR_BEGINS_S, "syslog", host
    return None, None, host


def _named_month_s(kind: str, found: re.Match[str]) -> float | None:
    """Seconds of a stamp whose month has a name, and whose day may have one digit."""
    return seconds_of((kind, f"{found[1]} {found[2]:>2} {found[3]}"), _LEAP_YEAR)
