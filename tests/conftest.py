"""Fixtures that several rooms use."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of recorded cases."""
    return ROOT / "evals" / "cases"


@pytest.fixture(scope="session")
def samples() -> Path:
    """Third-party sample files, which are never part of this project."""
    folder = os.environ.get("TORCHTRIAGE_SAMPLES")
    if not folder:
        pytest.skip("TORCHTRIAGE_SAMPLES is not set: the third-party sample files are not part of this project")
    return Path(folder)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
