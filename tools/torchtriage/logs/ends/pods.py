"""Ends of containers as Kubernetes tells them: ``kubectl describe`` and YAML, whose reason and exit code stand on lines
of their own; the table of ``kubectl get pods``; events of eviction and preemption.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re
from torchtriage.logs.ends.records import LauncherRecord, status_of

if TYPE_CHECKING:
    from torchtriage.logs.records import Line

_NAME = lazy_re(r"^(?:Name:|\s{2}name:)\s{1,20}(?P<name>[a-z0-9][a-z0-9.\-]{0,250})\s*$")
_NODE = lazy_re(r"^\s{0,4}(?:Node:|nodeName:)\s{1,20}(?P<name>[a-z0-9][a-z0-9.\-]{0,250})(?:/[\d.:a-f]{1,45})?\s*$")
_MESSAGE = lazy_re(r"^\s{0,20}(?:Message|message):\s{1,20}(?P<message>\S.{0,300})")
_REASON = lazy_re(
    r"^\s{0,20}[\"']?[rR]eason[\"']?\s{0,4}[:=]\s{0,20}[\"']?(?P<reason>OOMKilled|Error|Evicted|ContainerCannotRun|StartError)\b"
)
_CODE = lazy_re(r"^\s{0,20}[\"']?(?:Exit Code|exitCode)[\"']?:\s{0,20}(?P<code>\d{1,3})\b")
_ROW = lazy_re(
    r"^\s{0,4}(?:\S{1,100}\s{1,40})?(?P<name>[a-z0-9][a-z0-9.\-]{0,250})\s{1,40}\d{1,4}/\d{1,4}\s{1,40}"
    r"(?:Init:)?(?P<reason>OOMKilled|Error|Evicted)\b"
)
_EVENT = lazy_re(
    r"\b(?:Warning|Normal)\s{1,40}(?:\S{1,40}\s{1,40}){0,2}?(?P<reason>Evicted|Preempted|TaintManagerEviction)\b"
    r"(?:.{0,100}?\bpod/(?P<name>[a-z0-9][a-z0-9.\-]{0,250}))?"
)
_REASONS = {"OOMKilled": "oom_kill", "Evicted": "evicted", "Preempted": "preemption", "TaintManagerEviction": "evicted"}


@dataclass
class PodReader:
    """Reads the lines of one log that tell of containers."""

    _name: str | None = None
    _node: str | None = None
    _open: LauncherRecord | None = None
    """The record whose exit code may follow."""
    _unexplained: bool = False
    """A reason came that says nothing without its exit code."""
    _code: int | None = None
    """An exit code whose reason may follow, as YAML has it."""

    def read(self, text: str, line: Line) -> LauncherRecord | None:
        """The record that begins with this line, if one does."""
        if match := _NAME.match(text):
            self._name, self._open, self._unexplained, self._code = match["name"], None, False, None
            self._node = None
            return None
        if match := _NODE.match(text):
            self._node = match["name"]
            return None
        if match := _MESSAGE.match(text):
            if self._open is not None and self._open.reason is not None:
                self._open.detail = match["message"]
            return None
        if match := _CODE.match(text):
            return self._read_code(match["code"], line)
        match = _REASON.match(text) or _ROW.match(text) or _EVENT.search(text, 0, 1000)
        if match is None:
            return None
        reason = _REASONS.get(match["reason"])
        name = match.groupdict().get("name") or self._name
        self._unexplained = reason is None
        code, self._code = self._code, None
        if reason is None and "name" not in match.groupdict():
            self._open = None
            if code is None:
                return None
            self._unexplained = False
            return LauncherRecord("pod", line, exitcode=code, host=name, node=self._node_of(name))
        exitcode = code or {"oom_kill": -9, None: 1}.get(reason)
        self._open = LauncherRecord("pod", line, exitcode=exitcode, reason=reason, host=name, node=self._node_of(name))
        return self._open

    def _node_of(self, name: str | None) -> str | None:
        """The machine of the pod that is being described; a table's rows name other pods."""
        return self._node if name == self._name else None

    def _read_code(self, code: str, line: Line) -> LauncherRecord | None:
        opened, self._open = self._open, None
        unexplained, self._unexplained = self._unexplained, False
        status = status_of(code)
        if opened is not None and opened.reason is not None:
            opened.exitcode = status or opened.exitcode
            return None
        if not unexplained or not status:
            self._code = status
            return None
        return LauncherRecord("pod", line, exitcode=status, host=self._name, node=self._node)
