"""Where the last bracketed part of a line begins, as frames of py-spy, pystack and gdb have one."""

from __future__ import annotations


def opening_of_last_group(text: str) -> int:
    """Where the parenthesis opens that the last character closes; -1 when there is none with a blank before it."""
    if not text.endswith(")"):
        return -1
    depth = 0
    for index in range(len(text) - 1, 0, -1):
        char = text[index]
        if char == ")":
            depth += 1
        elif char == "(":
            depth -= 1
            if depth == 0:
                return index if text[index - 1] == " " else -1
    return -1
