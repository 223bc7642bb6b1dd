"""Run faults of train.py and recipes.py as real torchrun jobs and record what they leave behind, and show in a hang.

``python record.py OUT.tar.gz FAULT...``: all given faults run at once, each with its own ports. Needs py-spy.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOOK_AT_S = float(os.environ.get("LOOK_AT_S", "34"))
END_AT_S = float(os.environ.get("END_AT_S", "75"))


def children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *children(int(child))]
    return found


def environment(pid):
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(p.decode(errors="replace").split("=", 1) for p in pairs if b"=" in p)


def ras(port, *lines):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.settimeout(8)
        link.sendall("".join(line + "\n" for line in lines).encode())
        data = b""
        try:
            while chunk := link.recv(65536):
                data += chunk
        except TimeoutError:
            pass
    return data


def look(job, out, port):
    for pid in children(job.pid):
        try:
            rank = environment(pid).get("RANK")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if rank is None or b"train.py" not in command or b"torchrun" in command or b"spawn" in command:
            continue
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        if environment(parent).get("RANK") is not None and b"train.py" in Path(f"/proc/{parent}/cmdline").read_bytes():
            continue  # a DataLoader worker
        name = out / f"stack-rank{rank}-pid{pid}"
        for ending, flags in (("txt", []), ("json", ["--json"]), ("native.txt", ["--native"])):
            done = subprocess.run(
                ["py-spy", "dump", "--pid", str(pid), *flags], capture_output=True, timeout=30, check=False
            )
            if done.returncode == 0:
                Path(f"{name}.{ending}").write_bytes(done.stdout)
            else:
                Path(f"{name}.{ending}.error").write_bytes(done.stderr)
    for name, lines in (
        ("ras.txt", ("CLIENT PROTOCOL 2", "TIMEOUT 3", "VERBOSE STATUS")),
        ("ras-json.txt", ("CLIENT PROTOCOL 3", "SET FORMAT json", "TIMEOUT 3", "VERBOSE STATUS")),
    ):
        try:
            (out / name).write_bytes(ras(port, *lines))
        except OSError:
            continue


def record(number, index, root):
    out = root / f"fault-{number:02d}"
    out.mkdir(parents=True)
    port = 28100 + index
    env = {
        **os.environ,
        "FAULT": str(number),
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(out / "nccl_trace_rank_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"/tmp/fr-pipe-{number}-",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "3000",
        "NCCL_RAS_ADDR": f"127.0.0.1:{port}",
        "NCCL_DEBUG": "INFO" if number in (0, 7, 30, 38) else "WARN",
        "PG_TIMEOUT_S": os.environ.get("PG_TIMEOUT_S", "20"),
        "STEPS": "60" if number == 40 else "8",
        "PYTHONUNBUFFERED": "1",
    }
    with (out / "torchrun.log").open("wb") as sink:
        job = subprocess.Popen(
            ["torchrun", "--nproc-per-node", "2", "--master-port", str(29700 + index), "/workspace/train.py"],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            cwd="/tmp",
        )
        started = time.monotonic()
        looked = False
        while job.poll() is None and time.monotonic() - started < END_AT_S:
            time.sleep(0.2)
            text = (out / "torchrun.log").read_bytes()
            steps = text.count(b"step") + text.count(b"iteration ") + text.count(b"'loss'")
            if not looked and steps and time.monotonic() - started > LOOK_AT_S:
                looked = True
                look(job, out, port)
                if number == 40:
                    for rank in (0, 1):
                        pipe = f"/tmp/fr-pipe-{number}-{rank}.pipe"
                        if Path(pipe).exists():
                            Path(pipe).write_text("1")
        if job.poll() is None:
            for pid in children(job.pid):
                try:
                    os.kill(pid, signal.SIGCONT)
                except OSError:
                    continue
            # Ranks are in sessions of their own, so that ending the launcher alone would leave them behind.
            for pid in [*children(job.pid), job.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            job.wait()


def main():
    # What is recorded shows this path, not that of somebody's checkout.
    workspace = Path("/workspace")
    workspace.mkdir(exist_ok=True)
    target, numbers = sys.argv[1], [int(n) for n in sys.argv[2:]]
    programs = {"recipes.py" if number > 100 else "train.py" for number in numbers}
    if len(programs) != 1:
        raise SystemExit("faults up to 100 are train.py's, those above are recipes.py's: record them in two runs")
    shutil.copy(HERE / programs.pop(), workspace / "train.py")
    root = Path("/tmp/recordings")
    shutil.rmtree(root, ignore_errors=True)
    threads = [threading.Thread(target=record, args=(n, i, root)) for i, n in enumerate(numbers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with tarfile.open(target, "w:gz") as tar:
        tar.add(root, "recordings")
    sizes = {p.name: sum(f.stat().st_size for f in p.rglob("*")) for p in sorted(root.iterdir())}
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
