"""Let a small training job hang, ask ``torchtriage triage --live`` why, and hold the answer against the truth.

    python evals/faults/drill/demo.py [FAULT]

Four ranks over gloo; needs torch, no GPU. The exit status is 0 when the verdict names the right mode and rank.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from faults.drill.launch import Fault, fault_named, started  # noqa: E402

FAULT = "file-wait"


def demonstrate(fault: Fault, folder: Path) -> bool:
    """Show the job, the command and its answer; whether the answer is right."""
    print(f"starting four ranks over gloo, of which one will make the job hang ({fault.name}) ...", flush=True)
    with started(fault, folder / "job") as drill:
        print(f"all ranks stand still now: {drill.ranks}", flush=True)
        chosen = [word for pid in drill.ranks.values() for word in ("--pid", str(pid))]
        command = [sys.executable, "-m", "torchtriage", "triage", "--live", *chosen, "--output", str(folder / "bundle")]
        print(f"$ torchtriage triage --live {' '.join(chosen)}\n", flush=True)
        subprocess.run(command, check=False)
    print("\nthe job is ended; the same verdict again, from the bundle that was left:")
    said = subprocess.run(
        [sys.executable, "-m", "torchtriage", "triage", "--json", str(folder / "bundle")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    verdict = json.loads(said.stdout)
    mode, ranks = verdict["failure_mode"], verdict["culprits"]["ranks"]
    right = mode in (fault.failure_mode, *fault.acceptable) and ranks == drill.culprits
    print(f"{mode}, rank {ranks}: {'right' if right else f'WRONG, it is {fault.failure_mode}, rank {drill.culprits}'}")
    return right


def main() -> int:
    """Run the demonstration in a temporary folder."""
    fault = fault_named(sys.argv[1] if len(sys.argv) > 1 else FAULT)
    with tempfile.TemporaryDirectory() as folder:
        return 0 if demonstrate(fault, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
