"""The time and host that stand before a kernel message, in the forms of dmesg, /dev/kmsg, syslog and the journal.

Times of different clocks do not compare: seconds since boot are those of one host, a syslog line has no year, and a
time without its zone may be off by hours. So the clock is told with the time.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    import re

Clock = Literal["utc", "local", "syslog", "boot"]
MAX_PREFIX_CHARS = 400

# As the kernel's tools print them, in every locale.
_MONTHS = {
    name: number + 1
    for number, name in enumerate(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"))
}
_ISO = lazy_re(
    r"(?<!\d)(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?:(Z)|([+-]\d\d):?(\d\d))?"
    r"(?: ([\w.\-]{1,255}) kernel:)?"
)
_DMESG_T = lazy_re(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\]")
_BOOT = lazy_re(r"\[ {0,12}(\d{1,10}\.\d{1,9})\]")
_KMSG = lazy_re(r"(?:^|[^\d,])\d{1,6},\d{1,20},(\d{1,18}),[^;]{1,40};")
_SYSLOG = lazy_re(r"(?<![A-Za-z])([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?: ([\w.\-]{1,255}) kernel:)?")
_LEAP_YEAR = 2000  # stands in for the year that a syslog line lacks


def when_and_where(prefix: str) -> tuple[float | None, Clock | None, str | None]:
    """(seconds, of which clock, host), as far as the text before a message tells them.

    Seconds are since 1970 on the clocks "utc" and "local", since the year's beginning on "syslog", since boot on
    "boot".
    """
    prefix = prefix[-MAX_PREFIX_CHARS:]
    if (found := _ISO.search(prefix)) is not None and (seconds := _iso_s(found)) is not None:
        return seconds, "utc" if found[4] or found[5] else "local", found[7]
    if (found := _DMESG_T.search(prefix)) is not None:
        month, day, hour, minute, second, year = found.groups()
        seconds = _epoch_s(int(year), month, day, hour, minute, second)
        if seconds is not None:
            return seconds, "local", None
    syslog = _SYSLOG.search(prefix)
    host = syslog[6] if syslog is not None else None
    if (found := _BOOT.search(prefix)) is not None:
        return float(found[1]), "boot", host
    if (found := _KMSG.search(prefix)) is not None:
        return int(found[1]) / 1e6, "boot", host
    if syslog is not None:
        seconds = _epoch_s(_LEAP_YEAR, syslog[1], syslog[2], syslog[3], syslog[4], syslog[5])
        start = datetime(_LEAP_YEAR, 1, 1, tzinfo=timezone.utc).timestamp()
        if seconds is not None:
            return seconds - start, "syslog", host
    return None, None, host


def _iso_s(found: re.Match[str]) -> float | None:
    day, clock, fraction, _, hours, minutes, _ = found.groups()
    zone = f"{hours}:{minutes}" if hours else "+00:00"
    try:
        return datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6]:0<6}{zone}").timestamp()
    except (ValueError, OverflowError):
        return None


def _epoch_s(year: int, month: str, day: str, hour: str, minute: str, second: str) -> float | None:
    if month not in _MONTHS:
        return None
    try:
        moment = datetime(year, _MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=timezone.utc)
        return moment.timestamp()
    except (ValueError, OverflowError):
        return None
