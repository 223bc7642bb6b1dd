"""JSON Pointers (RFC 6901) into plain nested data. Stdlib only."""

from __future__ import annotations

import re
from typing import Any, cast

_INT_KEY = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)


def resolve_pointer(view: Any, pointer: str) -> Any:
    """Follow a JSON Pointer; raise KeyError when it leads nowhere."""
    if pointer == "":
        return view
    if not pointer.startswith("/"):
        raise KeyError(pointer)
    here: Any = view
    for token in pointer[1:].split("/"):
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict):
            record = cast("dict[Any, Any]", here)
            # Keys of a pickle may be ints, which are texts in JSON.
            key = int(token) if token not in record and _INT_KEY.fullmatch(token) else token
            here = record[key]
        elif isinstance(here, (list, tuple)) and re.fullmatch(r"\d{1,12}", token, re.ASCII):
            items = cast("list[Any]", here)
            if int(token) >= len(items):
                raise KeyError(pointer)
            here = items[int(token)]
        else:
            raise KeyError(pointer)
    return here


def pointer_token(key: str) -> str:
    """Escape a key for use in a JSON Pointer."""
    return key.replace("~", "~0").replace("/", "~1")
