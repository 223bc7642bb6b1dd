import errno
from pathlib import Path

import pytest

from torchtriage.bundle.files import write_new


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torchtriage.bundle.files.os.utime", full)
    with pytest.raises(OSError, match="No space"):
        write_new(tmp_path / "a", b"x", mtime_ns=1)
    assert not list(tmp_path.iterdir())
