"""``python -m torchtriage.evals.check CASE...``: triage cases, show verdicts, say whether they are the expected ones.

Exit status 0 when all verdicts are as expected, else 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torchtriage.artefacts.inputs import open_inputs
from torchtriage.errors import TorchtriageError
from torchtriage.evals.case import load_case
from torchtriage.evals.score import score
from torchtriage.verdict.render import render
from torchtriage.verdict.tool import triage


def main(folders: list[str]) -> int:
    """Check each case folder in turn; of several only a line each, and how many were right, left open and wrong."""
    told = {"right": 0, "left open": 0, "wrong": 0}
    for folder in folders:
        try:
            case = load_case(Path(folder))
            inputs_folder = str(Path(folder) / case.inputs)
            verdict = triage([inputs_folder])
            with open_inputs([inputs_folder]) as inputs:
                result = score(Path(folder).name, case, verdict, inputs)
        except TorchtriageError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        good = result.mode_right and result.culprits_right and result.evidence_grounded
        told["right" if good else "left open" if result.abstained else "wrong"] += 1
        if len(folders) == 1:
            sys.stdout.write(render(verdict) + "\n\n")
        answer = "as expected" if good else f"NOT as expected: {result.answered} of ranks {verdict.culprits.ranks}"
        sys.stdout.write(
            f"{folder}: {answer} ({result.expected}, ranks {case.expected.culprits.ranks}); "
            f"every quote was found again: {'yes' if result.evidence_grounded else 'NO'}\n"
        )
    if len(folders) != 1:
        sys.stdout.write(", ".join(f"{n} {what}" for what, n in told.items()) + f" of {len(folders)} cases\n")
    return 0 if told["right"] == len(folders) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
