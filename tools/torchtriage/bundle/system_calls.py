"""Names of the system calls in which processes wait, and which argument is the file. Numbers: Linux's own tables.

Only calls that can block are here; another one is told by its number.
"""

from __future__ import annotations

from dataclasses import dataclass

# name: (argument that is a descriptor or None, argument that points to a path or None)
ARGUMENTS: dict[str, tuple[int | None, int | None]] = {
    **dict.fromkeys(
        ("read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2"),
        (0, None),
    ),
    **dict.fromkeys(("recvfrom", "sendto", "recvmsg", "sendmsg", "recvmmsg", "sendmmsg", "connect"), (0, None)),
    **dict.fromkeys(("accept", "accept4", "ioctl", "fcntl", "flock", "fsync", "fdatasync", "fallocate"), (0, None)),
    **dict.fromkeys(("ftruncate", "fstat", "getdents64", "syncfs", "lseek", "close", "sync_file_range"), (0, None)),
    **dict.fromkeys(("epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter", "sendfile", "splice"), (0, None)),
    **dict.fromkeys(("open", "creat", "stat", "lstat", "access", "mkdir", "rmdir", "unlink", "rename"), (None, 0)),
    **dict.fromkeys(("readlink", "truncate", "statfs", "symlink", "link", "chdir", "execve"), (None, 0)),
    **dict.fromkeys(("openat", "openat2", "newfstatat", "statx", "mkdirat", "unlinkat", "faccessat"), (0, 1)),
    **dict.fromkeys(("faccessat2", "readlinkat", "renameat", "renameat2", "linkat"), (0, 1)),
    **dict.fromkeys(("futex", "poll", "ppoll", "select", "pselect6", "nanosleep", "clock_nanosleep"), (None, None)),
    **dict.fromkeys(("wait4", "waitid", "pause", "rt_sigtimedwait", "rt_sigsuspend", "sched_yield"), (None, None)),
    **dict.fromkeys(("mmap", "munmap", "msync", "mremap", "madvise", "brk", "sync", "semtimedop"), (None, None)),
    **dict.fromkeys(("io_getevents", "futex_waitv", "process_vm_readv", "restart_syscall", "exit_group"), (None, None)),
    **dict.fromkeys(("msgrcv", "semop", "mq_timedreceive", "vfork", "clone", "ptrace"), (None, None)),
}

_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 8: "lseek", 9: "mmap",
    11: "munmap", 12: "brk", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access",
    23: "select", 24: "sched_yield", 25: "mremap", 26: "msync", 28: "madvise", 34: "pause", 35: "nanosleep",
    40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
    56: "clone", 58: "vfork", 59: "execve", 61: "wait4", 65: "semop", 70: "msgrcv", 72: "fcntl", 73: "flock",
    74: "fsync", 75: "fdatasync", 76: "truncate", 77: "ftruncate", 80: "chdir", 82: "rename", 83: "mkdir", 84: "rmdir",
    85: "creat", 86: "link", 87: "unlink", 88: "symlink", 89: "readlink", 101: "ptrace", 128: "rt_sigtimedwait",
    130: "rt_sigsuspend", 137: "statfs", 162: "sync", 202: "futex", 208: "io_getevents", 217: "getdents64",
    219: "restart_syscall", 220: "semtimedop", 230: "clock_nanosleep", 231: "exit_group", 232: "epoll_wait",
    243: "mq_timedreceive", 247: "waitid", 257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat",
    264: "renameat", 265: "linkat", 267: "readlinkat", 269: "faccessat", 270: "pselect6", 271: "ppoll", 275: "splice",
    277: "sync_file_range", 281: "epoll_pwait", 285: "fallocate", 288: "accept4", 295: "preadv", 296: "pwritev",
    299: "recvmmsg", 306: "syncfs", 307: "sendmmsg", 310: "process_vm_readv", 316: "renameat2", 327: "preadv2",
    328: "pwritev2", 332: "statx", 426: "io_uring_enter", 437: "openat2", 439: "faccessat2", 441: "epoll_pwait2",
    449: "futex_waitv",
}  # fmt: skip
_AARCH64 = {
    4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat",
    37: "linkat", 38: "renameat", 43: "statfs", 45: "truncate", 46: "ftruncate", 47: "fallocate", 48: "faccessat",
    49: "chdir", 56: "openat", 57: "close", 61: "getdents64", 62: "lseek", 63: "read", 64: "write", 65: "readv",
    66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev", 71: "sendfile", 72: "pselect6",
    73: "ppoll", 76: "splice", 78: "readlinkat", 79: "newfstatat", 80: "fstat", 81: "sync", 82: "fsync",
    83: "fdatasync", 84: "sync_file_range", 94: "exit_group", 95: "waitid", 98: "futex", 101: "nanosleep",
    115: "clock_nanosleep", 117: "ptrace", 124: "sched_yield", 128: "restart_syscall", 133: "rt_sigsuspend",
    137: "rt_sigtimedwait", 183: "mq_timedreceive", 188: "msgrcv", 192: "semtimedop", 193: "semop", 202: "accept",
    203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 214: "brk", 215: "munmap",
    216: "mremap", 220: "clone", 221: "execve", 222: "mmap", 227: "msync", 233: "madvise", 242: "accept4",
    243: "recvmmsg", 260: "wait4", 267: "syncfs", 269: "sendmmsg", 270: "process_vm_readv", 276: "renameat2",
    286: "preadv2", 287: "pwritev2", 291: "statx", 426: "io_uring_enter", 437: "openat2", 439: "faccessat2",
    441: "epoll_pwait2", 449: "futex_waitv",
}  # fmt: skip
_TABLES = {"x86_64": _X86_64, "amd64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}


@dataclass(frozen=True)
class SystemCall:
    """The call in which a thread waits."""

    number: int
    name: str | None
    descriptor: int | None
    """Its file descriptor; for calls with a path the folder's, None for the working folder."""
    path_address: int | None


def parse(text: str, machine: str) -> SystemCall | None:
    """Read /proc/PID/syscall; None for a thread that runs, or waits outside of a call (a page fault, for one)."""
    fields = text.split()
    if len(fields) < 7 or not fields[0].isdigit() or len(fields[0]) > 6:
        return None
    try:
        arguments = [int(field, 16) for field in fields[1:7]]
    except ValueError:
        return None
    number = int(fields[0])
    name = _TABLES.get(machine.lower(), {}).get(number)
    descriptor_at, path_at = ARGUMENTS.get(name or "", (None, None))
    descriptor = arguments[descriptor_at] & 0xFFFFFFFF if descriptor_at is not None else None
    if descriptor is not None and descriptor >= 1 << 31:  # AT_FDCWD, or none
        descriptor = None
    return SystemCall(number, name, descriptor, arguments[path_at] if path_at is not None else None)
