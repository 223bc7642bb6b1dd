"""The product is the same from a checkout, an editable install and a wheel: knowledge travels with the code."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
CASE = "case-001"
BUILD_TIMEOUT_S = 300
SOURCES = (".ci", "tools", "playbook", "skill", "evals", "tests", "benchmarks")

# One worker builds and installs for all of them.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]


class Install(NamedTuple):
    """One way to have the product: its interpreter, and the console script when there is one."""

    python: Path
    script: Path | None
    environment: dict[str, str]


def run(*command: str | Path, environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
        env=environment or clean_environment(),
        cwd=cwd,
    )
    assert done.returncode in (0, 1, 3), f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def clean_environment(**extra: str) -> dict[str, str]:
    """This environment without what would let one install see another."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    return {**kept, **extra}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that building leaves nothing behind in the real one."""
    folder = tmp_path_factory.mktemp("checkout") / "torchtriage"
    folder.mkdir()
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for source in ROOT.iterdir():
        if source.is_file():
            shutil.copy2(source, folder / source.name)
        elif source.name in SOURCES:
            shutil.copytree(source, folder / source.name, ignore=skip)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, checkout)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="the package build makes the sdist")
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, checkout)
    (built,) = folder.glob("*.tar.gz")
    return built


def fresh_venv(folder: Path) -> Install:
    """A venv that sees the dependencies of this one by path, but not this one's editable torchtriage.

    A .pth inside a folder that is itself added by a .pth is not followed, so editable installs stay out.
    """
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return Install(python, folder / "bin" / "torchtriage", clean_environment())


@pytest.fixture(scope="module")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    install = fresh_venv(tmp_path_factory.mktemp("from-wheel"))
    run(install.python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
    return install


@pytest.fixture(scope="module")
def from_editable(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    install = fresh_venv(tmp_path_factory.mktemp("editable"))
    run(install.python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", checkout)
    return install


@pytest.fixture(scope="module")
def from_checkout(checkout: Path) -> Install:
    return Install(Path(sys.executable), None, clean_environment(PYTHONPATH=str(checkout / "tools")))


@pytest.fixture(params=["checkout", "editable", "wheel"])
def install(request: pytest.FixtureRequest) -> Install:
    return request.getfixturevalue(f"from_{request.param}")


def location_of(install: Install, tmp_path: Path) -> Path:
    """Where the package is imported from, asked in an empty folder."""
    code = "import torchtriage; print(torchtriage.__file__)"
    return Path(run(install.python, "-c", code, environment=install.environment, cwd=tmp_path).strip()).parent


def verdict_by(install: Install, inputs: Path, cwd: Path) -> dict[str, Any]:
    """The verdict on one case, with an index cache of its own."""
    environment = {**install.environment, "XDG_CACHE_HOME": str(cwd / "cache")}
    command = [install.python, "-m", "torchtriage", "triage", inputs, "--json"]
    return json.loads(run(*command, environment=environment, cwd=cwd))


def test_each_install_is_really_the_one_it_is_called(
    from_checkout: Install, from_editable: Install, from_wheel: Install, checkout: Path, tmp_path: Path
) -> None:
    assert location_of(from_checkout, tmp_path) == checkout / "tools" / "torchtriage"
    assert location_of(from_editable, tmp_path) == checkout / "tools" / "torchtriage"
    assert location_of(from_wheel, tmp_path).parent.name == "site-packages"


def test_all_installs_give_the_same_verdict(
    from_checkout: Install, from_editable: Install, from_wheel: Install, cases: Path, tmp_path: Path
) -> None:
    inputs = cases / CASE / "inputs"
    verdicts = [verdict_by(install, inputs, tmp_path) for install in (from_checkout, from_editable, from_wheel)]
    assert verdicts[0]["status"] == "diagnosed"
    assert verdicts[1] == verdicts[0]
    assert verdicts[2] == verdicts[0]


def test_the_console_script_works(from_editable: Install, from_wheel: Install, cases: Path, tmp_path: Path) -> None:
    for install in (from_editable, from_wheel):
        assert install.script is not None
        assert run(install.script, "--version", environment=install.environment).startswith("torchtriage ")
        text = run(install.script, "triage", cases / CASE / "inputs", environment=install.environment, cwd=tmp_path)
        assert text.startswith("DIAGNOSED ")


def test_the_decision_tree_and_every_playbook_entry_are_found(install: Install, tmp_path: Path) -> None:
    code = (
        "from torchtriage.knowledge.load import load_playbook; from torchtriage.knowledge.tree import load_tree;"
        "from torchtriage.knowledge.tree import reference_page;"
        "[reference_page(b['name']) for b in load_tree()['branches']];"
        "from torchtriage.knowledge.locate import data_root; book = load_playbook();"
        "assert all(book.text(e) for e in book.entries.values()); assert (data_root() / 'SKILL.md').is_file();"
        "print(len(book.entries))"
    )
    found = run(install.python, "-c", code, environment=install.environment, cwd=tmp_path)
    assert int(found) == len(list((ROOT / "playbook").glob("*/*.md")))


def test_every_module_is_importable(install: Install, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, torchtriage\n"
        "for module in pkgutil.walk_packages(torchtriage.__path__, 'torchtriage.'):\n"
        "    if not module.name.endswith('__main__') and '.instrument' not in module.name:\n"
        "        importlib.import_module(module.name)\n"
        "        print(module.name)\n"
    )
    names = run(install.python, "-c", code, environment=install.environment, cwd=tmp_path).split()
    assert {"torchtriage.server", "torchtriage.artefacts.worker", "torchtriage.verdict.decide"} <= set(names)


def test_the_wheel_holds_the_knowledge_and_nothing_of_the_workshop(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"torchtriage"}
    entries = sorted(str(p.relative_to(ROOT / "playbook")) for p in (ROOT / "playbook").glob("*/*.md"))
    packed = [name.removeprefix("torchtriage/_data/playbook/") for name in names if "_data/playbook/" in name]
    assert sorted(name for name in packed if name.endswith(".md")) == entries
    needed = ("_data/playbook/schema.json", "_data/skill/decision_tree.yaml", "_data/SKILL.md", "py.typed")
    pages = [f"_data/{page.relative_to(ROOT)}" for page in (ROOT / "skill" / "reference").glob("*.md")]
    assert {f"torchtriage/{name}" for name in (*needed, *pages)} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name or "cases/" in name]


def test_torch_is_wanted_by_its_extra_alone_and_the_one_installed_here_fits(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    wanted = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    assert "torch" in metadata.get_all("Provides-Extra", [])
    (torch,) = [each for each in wanted if each.name == "torch"]
    assert torch.marker is not None
    assert torch.marker.evaluate({"extra": "torch"})
    assert not torch.marker.evaluate({"extra": ""})
    try:
        installed = version("torch")
    except PackageNotFoundError:
        pytest.skip("torch is not installed")
    assert torch.specifier.contains(installed)


def test_the_sdist_builds_and_its_wheel_holds_the_same_files(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "SKILL.md", "tools/torchtriage/py.typed"} <= names
    assert not [name for name in names if name.startswith((".ci", ".venv")) or "__pycache__" in name]
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, sdist)
    (rebuilt,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(rebuilt) as second:
        assert sorted(second.namelist()) == sorted(first.namelist())
