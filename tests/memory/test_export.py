"""The page and the collapsed stacks: safe to open, bounded, and written over nothing that is not theirs."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import shutil
import subprocess
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from memory.make_snapshot import GIB, MIB, Allocator, native, snapshot, user, write
from memory.simulated_jobs import Job, until_oom
from torchtriage.errors import BadCallError, OutsideRootsError
from torchtriage.memory.analyze import MemoryFindings, Snapshot
from torchtriage.memory.export import check_targets, collapsed_stacks, write_files
from torchtriage.memory.page.charts import flame_graph, kind_of
from torchtriage.memory.page.document import MAX_PAGE_BYTES, START, page_of
from torchtriage.memory.page.flame import SMALLER, boxes_of, tree_of
from torchtriage.memory.tool import memory_snapshot
from torchtriage.report import Evidence
from torchtriage.tool_reports import (
    MemoryChange,
    MemoryComparison,
    MemoryDevice,
    MemoryFinding,
    MemoryHolder,
    MemoryReport,
    MemoryRequest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HOSTILE = "</script></style></svg><img src=http://evil.example/x onerror=alert(1)>\"'`;&\u202e\x1b[31m\n{{7*7}}"
_VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})


class _Page(HTMLParser):
    """Elements and attributes of a page, and whether what is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.balanced = True
        self.texts: dict[str, str] = {}
        self.feed(page)
        self.close()
        self.balanced &= not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        self.balanced &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data

    def value(self, tag: str, name: str) -> list[str]:
        return [value for t, n, value in self.attributes if (t, n) == (tag, name)]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _out_of_memory(folder: Path, name: str = "snapshot-rank00.pickle") -> Path:
    """A snapshot of a job whose activations outgrow a small GPU."""
    job = Job(Allocator(total_bytes=GIB))
    job.setup()
    job.step()
    until_oom(lambda: job.step(scale=40))
    return write(folder / name, snapshot(job.gpu))


def _flat(names: Sequence[tuple[list[str], int]], **device: Any) -> tuple[MemoryReport, MemoryFindings]:
    """A report and the findings that go with it, of one device with these stacks."""
    total = sum(size for _, size in names)
    record = MemoryDevice(
        artefact="a.pickle", rank=3, device=0, reserved_bytes=total, allocated_bytes=total, active_bytes=total,
        requested_bytes=total, peak_allocated_bytes=total, peak_reserved_bytes=total, peak_event=4,
        fragmentation_bytes=0, largest_free_bytes=0, moment="peak", by_category={"activations": total}, n_events=9,
        timeline=[(0, 0, 0), (4, total, total), (8, total // 2, total)],
    ).model_copy(update=device)  # fmt: skip
    summary = {"device": 0, "flame": [[n, size] for n, size in names], "by_category": {"activations": total},
               "n_holders": len(names)}  # fmt: skip
    report = MemoryReport(tool="memory_snapshot", status="fault", summary="full", devices=[record])
    return report, MemoryFindings([Snapshot("a.pickle", 3, {"devices": [summary]})])


def test_the_page_says_first_what_is_wrong_and_shows_every_part(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    report = memory_snapshot([str(_out_of_memory(tmp_path))], html=str(target))
    assert report.written == [str(target)]
    page = target.read_text("utf-8")
    parsed = _Page(page)
    assert page.startswith(START)
    assert parsed.balanced
    places = [page.index(text) for text in ('class="verdict"', "What would free memory", 'class="findings"',
              "Requests that failed", 'class="timeline"', 'class="bar"', "Who holds it", 'class="flame"')]  # fmt: skip
    assert places == sorted(places)
    assert "failed: a request of" in page
    assert "peak: " in page


def test_a_private_file_of_its_owner_is_written(tmp_path: Path) -> None:
    write_files(*_flat([(["f"], 9)]), html=str(tmp_path / "p.html"), collapsed=str(tmp_path / "p.txt"))
    assert _names(tmp_path) == ["p.html", "p.txt"]
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("p.html", "p.txt")} == {0o600}


def test_the_policy_lets_the_browser_run_our_own_script_and_style_alone() -> None:
    page = page_of(*_flat([(["f"], 9)]))
    parsed = _Page(page)
    (policy,) = [v for _, n, v in parsed.attributes if n == "content" and "default-src" in v]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        inner = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(inner) == 1
        digest = base64.b64encode(hashlib.sha256(inner[0].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    # Inline styles and handlers would need what the policy refuses.
    assert not [name for _, name, _ in parsed.attributes if name == "style" or name.startswith("on")]


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = page_of(*_flat([([_HOSTILE], 9)]))
    parsed = _Page(page)
    assert not set(parsed.tags) & {"img", "link", "iframe", "object", "embed", "base", "form", "use", "image"}
    assert not [
        v for _, name, v in parsed.attributes if name in ("src", "href", "srcset", "xlink:href") and v[0] != "#"
    ]
    assert not re.search(r"url\(|@import", parsed.texts["style"])
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", parsed.texts["script"])


def test_names_from_a_snapshot_stay_text() -> None:
    report, found = _flat([([_HOSTILE, "f"], 9)])
    device = report.devices[0].model_copy(
        update={
            "artefact": _HOSTILE,
            "by_category": {_HOSTILE: 9},
            "top_holders": [
                MemoryHolder(bytes=9, blocks=1, category=_HOSTILE, sure="low", site=_HOSTILE, frames=[_HOSTILE] * 2)
            ],
            "failed_requests": [
                MemoryRequest(event=4, requested_bytes=1, device_free_bytes=None, allocated_bytes=9, reserved_bytes=9,
                              stream=0, site=_HOSTILE)
            ],
        }
    )  # fmt: skip
    finding = MemoryFinding(kind="leak", artefact=_HOSTILE, rank=3, device=0, bytes=9, sure="low", says=_HOSTILE,
                            frames=[_HOSTILE])  # fmt: skip
    compared = MemoryComparison(of="moments", before=_HOSTILE, after=_HOSTILE, more_bytes=1)
    report = report.model_copy(
        update={"devices": [device], "findings": [finding], "summary": _HOSTILE, "gaps": [_HOSTILE],
                "comparisons": [compared]}
    )  # fmt: skip
    page = page_of(report, found)
    parsed = _Page(page)
    assert parsed.balanced
    assert "img" not in parsed.tags
    assert parsed.tags.count("script") == parsed.tags.count("style") == 1
    assert "onerror=alert(1)" in parsed.texts["p"]
    assert not re.search("[\u202e\x1b]", page)


def test_secrets_in_names_are_masked_in_both_files() -> None:
    report, found = _flat([(["login(password=hunter2hunter2)"], 9)])
    assert "hunter2hunter2" not in page_of(report, found) + "".join(collapsed_stacks(found))


@pytest.mark.parametrize("letter", ["f", '"', "\u6f22"])
def test_a_page_of_many_devices_and_stacks_stays_small(letter: str) -> None:
    name = letter * 400
    names = [([f"{number % 70}{name}", f"{number}{name}"], 10_000 + number) for number in range(5_000)]
    report, found = _flat(names)
    holder = MemoryHolder(bytes=9, blocks=1, category="other", sure="low", site=name[:300], frames=[name[:300]] * 8)
    device = report.devices[0].model_copy(update={"top_holders": [holder] * 20, "artefact": name[:240]})
    report.devices = [device] * 300
    report.gaps = [letter * 300] * 41
    report.evidence = [Evidence(artefact=letter * 240, where=letter * 300, quote=letter * 240, signal="x")] * 24
    change = MemoryChange(site=letter * 300, category="other", before_bytes=1, after_bytes=2)
    report.comparisons = [
        MemoryComparison(of="moments", before=letter * 240, after=letter * 240, more_bytes=1, changes=[change] * 20)
    ] * 32
    found.snapshots *= 300
    page = page_of(report, found).encode()
    assert len(page) < MAX_PAGE_BYTES
    parsed = _Page(page.decode())
    assert parsed.balanced
    n_sections = parsed.value("section", "class").count("device")
    assert 1 <= n_sections <= 16
    assert f"{300 - n_sections} more devices or snapshots have no section" in page.decode()


def test_a_page_without_devices_says_what_is_missing() -> None:
    report = MemoryReport(
        tool="memory_snapshot", status="inconclusive", summary="nothing", gaps=["a.pickle: cut short"]
    )
    page = page_of(report, MemoryFindings())
    assert _Page(page).balanced
    assert "a.pickle: cut short" in page


def test_stacks_too_small_to_be_seen_are_summed_up_under_their_caller() -> None:
    stacks = [(["main", f"f{number}"], 1) for number in range(5_000)] + [(["main", "large"], 5_000)]
    boxes = boxes_of(tree_of("all", stacks, 12_000), lambda _: 1, 1_000)
    told = [(b.name, b.start, b.bytes, b.depth) for b in boxes]
    assert told == [
        ("all", 0, 12_000, 0),
        (SMALLER, 10_000, 2_000, 1),
        ("main", 0, 10_000, 1),
        (SMALLER, 5_000, 5_000, 2),
        ("large", 0, 5_000, 2),
    ]


def test_a_flame_graph_keeps_to_its_budget_with_the_largest_first() -> None:
    stacks = [([f"f{number:03d}"], 1_000 - number) for number in range(300)]
    graph = flame_graph("all", stacks, sum(size for _, size in stacks), 30_000)
    assert len(graph) <= 30_500
    assert '<text x="3" y="13">f000</text>' in graph
    assert "f299" not in graph
    assert SMALLER in graph


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ("train (/job/train.py:26)", "user"),
        ("inner (/job/train.py:26) [call_function addmm]", "user"),
        ("forward (/env/lib/python3.12/site-packages/torch/nn/modules/linear.py:125)", "library"),
        ("call (<eval_with_key>.7:4)", "library"),
        ("at::native::empty_cuda", "native"),
        ("(smaller)", "smaller"),
        ("(no stack recorded)", "smaller"),
    ],
)
def test_frames_are_coloured_by_whose_code_they_are(frame: str, kind: str) -> None:
    assert kind_of(frame) == kind


def test_collapsed_stacks_are_outermost_first_with_bytes_last(tmp_path: Path) -> None:
    gpu = Allocator()
    gpu.alloc(
        4 * MIB,
        [native("at::_ops::empty_memory_format::call(c10::ArrayRef<long>)"), user("a;b\nc", 4), user("main", 9)],
    )
    gpu.alloc(2 * MIB, [user("main", 9)])
    target = tmp_path / "stacks.txt"
    memory_snapshot([str(write(tmp_path / "snapshot-rank02.pickle", snapshot(gpu)))], collapsed=str(target))
    assert target.read_text("utf-8").splitlines() == [
        f"rank 2 device 0;main (/job/train.py:9);a,b c (/job/train.py:4);at::_ops::empty_memory_format::call {4 * MIB}",
        f"rank 2 device 0;main (/job/train.py:9) {2 * MIB}",
    ]


def test_collapsed_stacks_tell_two_moments_of_a_device_apart_and_leave_no_byte_out() -> None:
    device = {"device": 0, "flame": [[["f"], 7]], "by_category": {"other": 7, "unknown": 3}}
    found = MemoryFindings([Snapshot(name, None, {"devices": [device]}) for name in ("a;b.pickle", "c.pickle")])
    assert list(collapsed_stacks(found)) == [
        "device 0 (a,b.pickle);f 7",
        "device 0 (a,b.pickle);(smaller) 3",
        "device 0 (c.pickle);f 7",
        "device 0 (c.pickle);(smaller) 3",
    ]


def _write_both(folder: Path, html: str | None = "p.html", collapsed: str | None = "p.txt", **kwargs: Any) -> None:
    write_files(
        *_flat([(["f"], 9)]),
        html=html and str(folder / html),
        collapsed=collapsed and str(folder / collapsed),
        **kwargs,
    )


def test_files_of_ours_are_replaced_and_no_others(tmp_path: Path) -> None:
    _write_both(tmp_path)
    before = (tmp_path / "p.html").stat().st_ino
    _write_both(tmp_path)
    assert (tmp_path / "p.html").stat().st_ino != before
    (tmp_path / "p.html").write_text("<!DOCTYPE html>\n<title>mine</title>")
    (tmp_path / "p.txt").write_text("my notes 1\n")
    for html, collapsed in (("p.html", None), (None, "p.txt")):
        with pytest.raises(BadCallError, match=r"is there already and no .{1,40} of torchtriage's"):
            _write_both(tmp_path, html, collapsed)
    assert (tmp_path / "p.txt").read_text() == "my notes 1\n"


def test_neither_kind_of_file_replaces_the_other(tmp_path: Path) -> None:
    _write_both(tmp_path)
    with pytest.raises(BadCallError, match="no page"):
        _write_both(tmp_path, "p.txt", None)
    with pytest.raises(BadCallError, match="no file of collapsed stacks"):
        _write_both(tmp_path, None, "p.html")
    with pytest.raises(BadCallError, match="cannot be both"):
        _write_both(tmp_path, "new", "new")


def test_nothing_is_written_where_one_of_the_two_may_not_be(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("my notes\n")
    with pytest.raises(BadCallError):
        _write_both(tmp_path)
    assert _names(tmp_path) == ["p.txt"]


def test_links_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    _write_both(tmp_path, "real.html", None)
    (tmp_path / "link").symlink_to("real.html")
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("link", "is a link"), ("dangling", "is a link"), ("folder", "is a folder"), ("pipe", "no regular file"),
        ("none/p.html", "there is no folder"), ("folder/..", "is a folder"),
        ("real.html/p", "there is no folder|cannot"), ("n" * 300, "cannot be written"),
    ):  # fmt: skip
        with pytest.raises(BadCallError, match=reason):
            _write_both(tmp_path, name, None)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("given", ["", " ", "a\x00b", "a\udcffb"])
def test_what_is_no_name_is_refused(given: str) -> None:
    with pytest.raises(BadCallError):
        check_targets(given, None)


def test_another_users_page_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_both(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadCallError, match="another user"):
        _write_both(tmp_path)


def test_files_lie_inside_the_roots_also_through_links(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "way").symlink_to(outside)
    _write_both(root, roots=[root])
    for html in (str(outside / "p.html"), str(root / "way" / "p.html"), str(root / ".." / "p.html")):
        with pytest.raises(OutsideRootsError):
            check_targets(html, None, [root])
    assert check_targets("relative.html", None, [root])[0] == root / "relative.html"


@pytest.mark.parametrize(("code", "says"), [(errno.ENOSPC, "no space is left"), (errno.EACCES, "Permission denied")])
def test_a_disk_that_takes_no_more_leaves_what_was_there(
    code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_both(tmp_path)
    before = (tmp_path / "p.html").read_bytes()

    def refuse(*args: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    with pytest.raises(BadCallError, match=says):
        _write_both(tmp_path)
    assert (tmp_path / "p.html").read_bytes() == before
    assert _names(tmp_path) == ["p.html", "p.txt"]


class _Recorder(BaseHTTPRequestHandler):
    """Serves one page and notes whatever is asked for."""

    page = b""
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200 if self.path == "/page.html" else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        if self.path == "/page.html":
            self.wfile.write(self.page)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def test_a_browser_shows_the_page_without_errors_and_asks_for_nothing_else(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium")
    report, found = _flat([([_HOSTILE, "train (/job/train.py:4)"], 9 * MIB), (["train (/job/train.py:4)"], MIB)])
    _Recorder.page, _Recorder.asked = page_of(report, found).encode(), []
    with ThreadingHTTPServer(("127.0.0.1", 0), _Recorder) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            shown = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                 "--no-first-run", f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--dump-dom",
                 f"http://127.0.0.1:{server.server_port}/page.html"],
                capture_output=True, timeout=120, check=False,
            )  # fmt: skip
        finally:
            server.shutdown()
            serving.join()
    dom, log = shown.stdout.decode("utf-8", "replace"), shown.stderr.decode("utf-8", "replace")
    if "</html>" not in dom:
        pytest.skip(f"chromium does not run here: {log[-200:]}")
    assert [line for line in log.splitlines() if "CONSOLE" in line] == []
    assert _Recorder.asked == ["/page.html"]
    # The script ran: what only it turns on is there, and no name has become an element.
    assert 'class="flame live"' in dom
    assert "<img" not in dom
