"""The decision tree: from what somebody sees, over the questions that separate, to the failure mode that explains it.

Its data is skill/decision_tree.yaml. SKILL.md shows its top; skill/reference/ holds a page per branch, rendered from it
and the playbook (``python -m torchtriage.knowledge.tree`` renders both). It names causes; what proves them is the
playbook's.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from torchtriage.errors import KnowledgeError
from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.locate import data_root

if TYPE_CHECKING:
    from pathlib import Path

SKILL_LINK, RESOURCE_LINK = "skill/reference/{}.md", "triage://reference/{}"

_BEGIN = "<!-- decision tree: rendered from skill/decision_tree.yaml -->"
_END = "<!-- end of decision tree -->"


@functools.cache
def load_tree(root: Path | None = None) -> dict[str, Any]:
    """Load the decision tree; read once per process.

    Raises:
        KnowledgeError: it is missing or not a mapping.
    """
    path = (root or data_root()) / "skill" / "decision_tree.yaml"
    tree = load_yaml(path)
    if not isinstance(tree, dict) or "branches" not in tree:
        raise KnowledgeError(f"{path}: the decision tree must have branches")
    return tree  # pyright: ignore[reportUnknownVariableType]


def branch_named(name: str) -> str | None:
    """The branch that somebody means by ``name`` (``NCCL-timeout`` is ``nccl_timeout``); None when there is none."""
    wanted = name.strip().lower().replace("-", "_").replace(" ", "_")
    return next((branch["name"] for branch in load_tree()["branches"] if branch["name"] == wanted), None)


def reference_page(branch: str, root: Path | None = None) -> str:
    """The page of a branch: its questions in order, and a table of its failure modes.

    Raises:
        KnowledgeError: there is no such page.
    """
    path = (root or data_root()) / "skill" / "reference" / f"{branch}.md"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise KnowledgeError(f"{path}: the page cannot be read: {error}") from error


def render_tree(tree: dict[str, Any], link: str = RESOURCE_LINK) -> str:
    """The top of the decision tree as Markdown: what to call first, and the branches with links to their pages."""
    lines: list[str] = [f"First: {tree['first']['ask']}", ""]
    for number, answer in enumerate(tree["first"]["answers"], start=1):
        call = f"`{call_words(answer)}`; " if "call" in answer else ""
        lines.append(f"{number}. {answer['if']}: {call}{answer['then']}")
    lines += ["", "| what is seen | page to open | its first question |", "|---|---|---|"]
    for branch in tree["branches"]:
        name = branch["name"]
        lines.append(f"| {branch['when']} | [{name}]({link.format(name)}) | {branch['nodes'][0]['ask']} |")
    return "\n".join([*lines, ""])


def call_words(node: dict[str, Any]) -> str:
    """A call as it is written in Python: ``triage(paths=["FOLDER"])``."""
    arguments = node.get("arguments", {})
    return f"{node['call']}({', '.join(f'{name}={_value(value)}' for name, value in arguments.items())})"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"  # pyright: ignore[reportUnknownVariableType]
    return f'"{value}"' if isinstance(value, str) else str(value)


def embed_tree(skill_text: str, tree: dict[str, Any]) -> str:
    """SKILL.md with its decision-tree part rendered anew.

    Raises:
        KnowledgeError: the markers are missing.
    """
    pattern = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
    if not pattern.search(skill_text):
        raise KnowledgeError(f"SKILL.md lacks the markers {_BEGIN} and {_END}")
    block = f"{_BEGIN}\n\n{render_tree(tree, SKILL_LINK)}\n{_END}"
    return pattern.sub(lambda _: block, skill_text)


def rendered_files(root: Path) -> dict[Path, str]:
    """All files that are rendered from the tree and the playbook under ``root``, with what they must hold."""
    from torchtriage.knowledge.load import load_playbook
    from torchtriage.knowledge.reference import render_page

    tree, book = load_tree(root), load_playbook(root)
    skill = root / "SKILL.md"
    files = {skill: embed_tree(skill.read_text(encoding="utf-8"), tree)}
    for branch in tree["branches"]:
        files[root / "skill" / "reference" / f"{branch['name']}.md"] = render_page(branch, book)
    return files


def main() -> None:
    """Render SKILL.md and the reference pages of this checkout."""
    root = data_root()
    files = rendered_files(root)
    folder = root / "skill" / "reference"
    folder.mkdir(exist_ok=True)
    for old in set(folder.glob("*.md")) - set(files):
        old.unlink()
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
