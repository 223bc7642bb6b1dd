import subprocess
import sys
from pathlib import Path

import torchtriage

_START = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from torchtriage.plugin_search import load_metadata_when_asked\n"
    "load_metadata_when_asked()\n"
)


def printed(code: str, **environment: str) -> str:
    root = str(Path(torchtriage.__file__).parents[1])
    command = [sys.executable, "-W", "error", "-c", _START + code, root]
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=60, env=environment).stdout


def test_models_are_built_without_what_looks_for_plugins() -> None:
    code = (
        "import pydantic\n"
        "class Model(pydantic.BaseModel):\n    n: int\n"
        "print(Model(n='3').n, 'email.message' in sys.modules)"
    )
    assert printed(code, PYDANTIC_DISABLE_PLUGINS="__all__") == "3 False\n"


def test_who_asks_gets_the_module_itself() -> None:
    code = (
        "import importlib, importlib.metadata\n"
        "print(importlib.metadata.version('pydantic') != '', importlib.metadata is sys.modules['importlib.metadata'])\n"
        "print(type(importlib.metadata).__name__, importlib.metadata.__spec__.name)"
    )
    assert printed(code) == "True True\nmodule importlib.metadata\n"


def test_names_of_it_and_modules_in_it_can_be_imported() -> None:
    code = (
        "from importlib.metadata import PackageNotFoundError, entry_points\n"
        "import importlib.metadata._meta\n"
        "print(issubclass(PackageNotFoundError, ImportError), len(entry_points(group='console_scripts')) > 0)"
    )
    assert printed(code) == "True True\n"


def test_a_module_that_is_loaded_stays() -> None:
    code = (
        "import importlib.metadata\n"
        "importlib.metadata.version('pydantic')\n"
        "load_metadata_when_asked()\n"
        "print(type(importlib.metadata).__name__)"
    )
    assert printed(code) == "module\n"
