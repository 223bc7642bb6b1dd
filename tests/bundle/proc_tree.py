"""Builds a process file system of files, as far as the finder and the facts read it."""

from pathlib import Path

PYTHON = "/usr/bin/python3"
OWN_PID = 999


class ProcTree:
    """Processes under a folder; ``add`` returns the pid."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._next = 1000
        self.add("pytest", pid=OWN_PID, ppid=1, command=[PYTHON, "-m", "torchtriage", "collect"])

    def add(
        self,
        name: str = "pt_main_thread",
        *,
        pid: int | None = None,
        ppid: int = 1,
        command: list[str] | None = None,
        env: dict[str, str] | bytes | None = None,
        state: str = "S",
        torch: bool = False,
        namespace: str = "",
        flags: int = 0,
        n_threads: int = 3,
    ) -> int:
        if pid is None:
            self._next += 1
            pid = self._next
        folder = self.root / str(pid)
        folder.mkdir(parents=True)
        if namespace:
            (folder / "ns").mkdir()
            (folder / "ns" / "net").symlink_to(namespace)
        zeros = " ".join(["0"] * 7)
        fields = (
            f"{state} {ppid} 1 1 0 -1 {flags} {zeros[:7]} 250 50 0 0 20 0 {n_threads} 0 {pid * 10} 1000 200 {zeros}"
        )
        (folder / "stat").write_text(f"{pid} ({name}) {fields}\n", encoding="utf-8")
        arguments = [PYTHON, "train.py"] if command is None else command
        (folder / "cmdline").write_bytes(b"".join(a.encode() + b"\0" for a in arguments))
        data = env if isinstance(env, bytes) else b"".join(f"{k}={v}\0".encode() for k, v in (env or {}).items())
        (folder / "environ").write_bytes(data)
        (folder / "maps").write_text(
            "7f00-7f01 r-xp 0 08:01 1 /lib/libtorch_cpu.so\n" if torch else "", encoding="utf-8"
        )
        return pid

    def connect(self, a: int, b: int, port: int) -> None:
        """A TCP connection between two processes."""
        ends = (f"0100007F:{port:04X}", f"0100007F:{port + 1:04X}")
        for pid, inode in ((a, port * 10), (b, port * 10 + 1)):
            fds = self.root / str(pid) / "fd"
            fds.mkdir(exist_ok=True)
            (fds / str(len(list(fds.iterdir())))).symlink_to(f"socket:[{inode}]")
        rest = "00000000:00000000 00:00000000 00000000 0 0"
        lines = [
            f"   0: {ends[0]} {ends[1]} 01 {rest} {port * 10} 1 0 20 4 30 10 -1\n",
            f"   1: {ends[1]} {ends[0]} 01 {rest} {port * 10 + 1} 1 0 20 4 30 10 -1\n",
        ]
        for folder in self.root.iterdir():
            (folder / "net").mkdir(exist_ok=True)
            with (folder / "net" / "tcp").open("a", encoding="utf-8") as table:
                if table.tell() == 0:
                    table.write("  sl  local_address rem_address   st\n")
                table.writelines(lines)


def torchrun_env(rank: int, world_size: int = 4, **more: str) -> dict[str, str]:
    """What torchrun sets for a worker on the first node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        **more,
    }
