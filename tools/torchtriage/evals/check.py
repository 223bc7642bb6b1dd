"""``python -m torchtriage.evals.check CASE...``: triage cases, show verdicts, say whether they are the expected ones.

Exit status 0 when all verdicts are as expected, else 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torchtriage.artefacts.inputs import open_inputs
from torchtriage.evals.case import load_case
from torchtriage.evals.score import score
from torchtriage.verdict.render import render
from torchtriage.verdict.tool import triage


def main(folders: list[str]) -> int:
    """Check each case folder in turn."""
    missed = 0
    for folder in folders:
        case = load_case(Path(folder))
        inputs_folder = str(Path(folder) / case.inputs)
        verdict = triage([inputs_folder])
        with open_inputs([inputs_folder]) as inputs:
            result = score(Path(folder).name, case, verdict, inputs)
        good = result.mode_right and result.culprits_right and result.evidence_grounded
        missed += not good
        sys.stdout.write(render(verdict) + "\n\n")
        told = "as expected" if good else f"NOT as expected ({result.expected}, ranks {case.expected.culprits.ranks})"
        sys.stdout.write(
            f"{folder}: {told}; every quote was found again: {'yes' if result.evidence_grounded else 'NO'}\n"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
