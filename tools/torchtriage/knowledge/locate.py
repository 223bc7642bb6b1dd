"""Where the knowledge folders lie: at the root of a checkout, or inside the installed package."""

from __future__ import annotations

from pathlib import Path

from torchtriage.errors import KnowledgeError

_PACKAGE = Path(__file__).resolve().parents[1]


def data_root() -> Path:
    """The folder that holds ``playbook/``, ``skill/`` and ``SKILL.md``.

    A wheel carries them as ``torchtriage/_data/``; in a checkout (also an editable install) they lie at its root.

    Raises:
        KnowledgeError: neither is there.
    """
    for root in (_PACKAGE / "_data", _PACKAGE.parents[1]):
        if (root / "playbook" / "schema.json").is_file():
            return root
    raise KnowledgeError(
        f"the playbook is neither in {_PACKAGE / '_data'} nor in {_PACKAGE.parents[1]}; install torchtriage again"
    )
