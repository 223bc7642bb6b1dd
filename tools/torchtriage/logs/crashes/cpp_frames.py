"""Frames of native stacks as the software that prints them words them, and which of them say where a crash is from.

Sources of the forms: c10 (``frame #1: f() + 0x1a (0x7f in lib.so)``), glibc's backtrace_symbols, Open MPI, UCX, glog,
gdb, Python's faulthandler (Python frames, and since 3.14 frames of the C stack).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtriage.lazy_re import lazy_re

if TYPE_CHECKING:
    from torchtriage.logs.records import Line

_HEX = r"0x[0-9a-fA-F]{1,16}"
_FRAMES = tuple(
    lazy_re(form)
    for form in (
        rf"^frame #\d{{1,4}}: (?P<function>.{{1,600}}?) \+ {_HEX} \({_HEX} in (?P<library>[^)]{{1,400}})\)",
        r"^\s{1,8}Binary file \"(?P<library>[^\"]{1,400})\", at (?P<function>[^\s\[]{0,400}?)\+?(?:0x|\[)",
        r"^\s{1,8}File \"(?P<file>[^\"]{1,600})\", line (?P<line>\d{1,8}) in (?P<function>.{1,200})$",
        rf"^(?:\[[ ]?\d{{1,3}}\] |\s{{0,8}}\d{{1,3}}:?\s{{1,4}})?(?P<library>[\w./+\-]{{1,400}})"
        rf"\((?P<function>[^()+]{{0,400}})(?:\([^)]{{0,200}}\))?\+{_HEX}\)\s?\[{_HEX}\]",
        rf"^\s{{0,8}}(?:PC: )?@\s{{1,20}}{_HEX} (?P<function>\S.{{0,400}})$",
        rf"^\s{{0,8}}\d{{1,3}} {_HEX} (?P<function>\S.{{0,300}}?)\s{{1,8}}(?P<source>\S{{1,300}}:\d{{1,8}})$",
        rf"^#\d{{1,4}}\s{{1,4}}(?:{_HEX} in )?(?P<function>\S.{{0,300}}?) \(.{{0,400}}?\)"
        r"(?: (?:from (?P<library>\S{1,400})|at (?P<source>\S{1,400})))?$",
    )
)
# What every crash passes through on its way out, and the interpreter that called into the native code.
_RUNTIME_LIBRARY = lazy_re(
    r"(?:^|/)(?:libc|libpthread|ld-linux[\w.\-]{0,20}|ld|libgcc_s|libstdc\+\+|libm|libdl|librt|libpython[\w.]{0,12}|"
    r"python[\d.]{0,8}|libucs|libasan|libtsan|libsegfault|libSegFault)(?:-[\d.]{1,12})?(?:\.so[\d.]{0,20})?$|vdso"
)
_RUNTIME_FUNCTION = lazy_re(
    r"^(?:killpg|raise|abort|gsignal|pthread_kill|__pthread_kill|__restore_rt|<signal handler called>|"
    r"<unknown function>|\(unknown\)|\?\?|clone|clone3|start_thread|_start|__libc_\w{1,60}|"
    r"__GI_\w{1,60}|main|ucs_\w{1,60}|_?Py[A-Z_]\w{0,80}|"
    r"_?Py\w{1,80}_\w{1,80}|std::terminate|__cxxabiv1|__gnu_cxx|__cxa_\w{1,40}|_Unwind_\w{1,40}|c10::Error|c10::detail|"
    r"c10::FatalSignalHandler|c10::get_backtrace|google::|malloc_printerr|_int_free|_int_malloc|cfree|free|malloc|"
    r"memcpy|__memcpy\w{0,60}|__memmove\w{0,60})"
)
_STANDARD_LIBRARY = lazy_re(r"/lib/python\d\.\d{1,2}/(?!site-packages|dist-packages)|^<frozen|/runpy\.py$")


@dataclass(frozen=True)
class NativeFrame:
    """One frame of the stack of a process that crashed."""

    line: Line
    function: str
    library: str | None
    python_file: str | None = None
    number: int | None = None

    @property
    def is_python(self) -> bool:
        """A frame of the Python program, not of native code."""
        return self.python_file is not None

    @property
    def where(self) -> str:
        """function (file:line), or the function alone."""
        return f"{self.function} ({self.python_file}:{self.number})" if self.is_python else self.function

    @property
    def is_runtimes(self) -> bool:
        """It belongs to the C library, the C++ runtime, the interpreter or a crash handler."""
        if self.python_file is not None:
            return _STANDARD_LIBRARY.search(self.python_file) is not None
        if self.library is not None and _RUNTIME_LIBRARY.search(self.library):
            return True
        return _RUNTIME_FUNCTION.match(self.function) is not None or (not self.function and self.library is None)


def frame_of(text: str, line: Line) -> NativeFrame | None:
    """The frame that a line shows, if it shows one."""
    for form in _FRAMES:
        match = form.match(text)
        if match is not None:
            found = match.groupdict()
            number = found.get("line")
            return NativeFrame(
                line,
                found["function"].strip(),
                found.get("library"),
                found.get("file"),
                int(number) if number else None,
            )
    return None
