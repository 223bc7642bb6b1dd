"""Tell the encoding of a text by its first bytes. Stdlib only."""

from __future__ import annotations

import codecs
import re

_SAMPLE_BYTES = 8192
_MIN_UTF16_BYTES = 8
MAX_HOLES = 4
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def encoding_of(head: bytes) -> tuple[str, int]:
    """The codec's name ("utf-8" unless it shows another) and how many bytes of a byte-order mark to skip."""
    for mark, codec in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return codec, len(mark)
    sample = head[:_SAMPLE_BYTES]
    half = len(sample) // 2
    if len(sample) >= _MIN_UTF16_BYTES:
        # Text that is mostly ASCII has a zero in every second byte; a hole of zeros has them in both.
        even, odd = sample[0::2].count(0), sample[1::2].count(0)
        if odd * 10 >= half * 6 and even * 20 <= half:
            return "utf-16-le", 0
        if even * 10 >= half * 6 and odd * 20 <= half:
            return "utf-16-be", 0
    return "utf-8", 0


def decode(data: bytes) -> str:
    """Decode a whole text; what is broken becomes U+FFFD, a byte-order mark is dropped."""
    codec, skip = encoding_of(data)
    return (data[skip:] if skip else data).decode(codec, errors="replace")


def as_utf8_text(head: bytes) -> bytes | None:
    """The head of a file as UTF-8 text without byte-order mark, or None when it is binary.

    A few holes of zeros, as a truncated or badly copied log has, do not make a text binary; they are left out.
    """
    codec, skip = encoding_of(head)
    head = head[skip:]
    if codec != "utf-8":
        head = head.decode(codec, errors="replace").encode("utf-8", errors="replace")
    sample = head[:_SAMPLE_BYTES]
    tolerated = max(4, len(sample) // 10)
    if sample.count(0) > len(sample) // 50:
        tolerated = 0
        head = re.sub(rb"\0{8,}", b"", head, count=MAX_HOLES)
        sample = head[:_SAMPLE_BYTES]
        if not sample or sample.count(0) > len(sample) // 50:
            return None
    decoded = sample.decode("utf-8", errors="replace")
    odd = sum(c == "\ufffd" or (ord(c) < 32 and c not in "\t\n\r\x1b\x08\x0c\x07") for c in decoded)
    return None if odd > tolerated else head
