"""The decision tree: from what somebody sees to the branch and the tool that decides it.

Its data is skill/decision_tree.yaml; SKILL.md and the MCP resource are rendered from it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.locate import data_root

if TYPE_CHECKING:
    from pathlib import Path

_BEGIN = "<!-- decision tree: rendered from skill/decision_tree.yaml -->"
_END = "<!-- end of decision tree -->"


def load_tree(root: Path | None = None) -> dict[str, Any]:
    """Load the decision tree.

    Raises:
        KnowledgeError: it is missing or not a mapping.
    """
    import yaml

    path = (root or data_root()) / "skill" / "decision_tree.yaml"
    try:
        tree: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise KnowledgeError(f"{path}: the decision tree cannot be read: {error}") from error
    if not isinstance(tree, dict) or "branches" not in tree:
        raise KnowledgeError(f"{path}: the decision tree must have branches")
    return tree  # pyright: ignore[reportUnknownVariableType]


def render_tree(tree: dict[str, Any]) -> str:
    """The decision tree as Markdown, as SKILL.md and the MCP resource show it."""
    lines: list[str] = []
    for branch in tree["branches"]:
        lines.append(f"### {branch['name']}: {branch['when']}")
        lines.append("")
        for number, step in enumerate(branch["steps"], start=1):
            call = f"`{step['call']}`: " if "call" in step else ""
            lines.append(f"{number}. {call}{step['then']}")
        lines.append("")
    return "\n".join(lines)


def embed_tree(skill_text: str, tree: dict[str, Any]) -> str:
    """SKILL.md with its decision-tree part rendered anew.

    Raises:
        KnowledgeError: the markers are missing.
    """
    pattern = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
    if not pattern.search(skill_text):
        raise KnowledgeError(f"SKILL.md lacks the markers {_BEGIN} and {_END}")
    block = f"{_BEGIN}\n\n{render_tree(tree)}\n{_END}"
    return pattern.sub(lambda _: block, skill_text)


def main() -> None:
    """Render the decision tree into SKILL.md of this checkout."""
    path = data_root() / "SKILL.md"
    path.write_text(embed_tree(path.read_text(encoding="utf-8"), load_tree()), encoding="utf-8")


if __name__ == "__main__":
    main()
