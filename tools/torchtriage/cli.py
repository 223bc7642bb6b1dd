"""The command line: one command per tool, the same parameters as everywhere, ``--json`` on each.

Start-up is lazy: what a command needs is imported when it runs, so that ``--help`` costs nothing.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from torchtriage import __version__
from torchtriage.errors import BadCallError, StreamError, TorchtriageError
from torchtriage.plugin_search import load_metadata_when_asked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torchtriage.report import Report

    Handler = Callable[[argparse.Namespace], int]

MAX_STDIN_BYTES = 8 << 20
_OBJECTS_BEFORE_COLLECTION = 200_000
_EPILOG = """\
exit codes: 0 nothing is wrong; 1 a fault was found; 2 the call was wrong; 3 it cannot be decided from what was given
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code of CONTRACT: 0 good, 1 fault, 2 wrong call, 3 undecided."""
    try:
        return _main(argv)
    except KeyboardInterrupt:
        return 130


def _main(argv: Sequence[str] | None) -> int:
    # Looking for plugins of pydantic takes longer than most of what a command does, and none is wanted here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if argv is None:
        # What a command makes lives until it ends: looking for garbage, as often as usual and at the end, takes a tenth
        # of its time. Another program that calls this keeps its own ways.
        load_metadata_when_asked()
        gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
        atexit.register(gc.freeze)
    arguments = _with_hyphens(sys.argv[1:] if argv is None else list(argv))
    parser = _parser()
    _write_anything(sys.stdout)
    _write_anything(sys.stderr)
    options = parser.parse_args(arguments)
    if options.handler is None:
        parser.print_help()
        return 2
    try:
        return options.handler(options)
    except TorchtriageError as error:
        print(f"torchtriage: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        if "TORCHTRIAGE_DEBUG" in os.environ:
            raise
        print(
            f"torchtriage: a fault of torchtriage itself: {type(error).__name__}: {str(error)[:200]!r}; "
            "set TORCHTRIAGE_DEBUG=1 to see where",
            file=sys.stderr,
        )
        return 3


def _with_hyphens(arguments: list[str]) -> list[str]:
    """Accept underscores where a command or a flag is spelled with hyphens."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    spelled: list[str] = []
    for position, argument in enumerate(arguments):
        if position < end and argument.startswith("--"):
            name, equals, value = argument.partition("=")
            spelled.append(name.replace("_", "-") + equals + value)
        elif position == 0 and not argument.startswith("-"):
            spelled.append(argument.replace("_", "-"))
        else:
            spelled.append(argument)
    return spelled


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchtriage",
        description="From what a failed distributed PyTorch job left behind to one verdict: what, where, why, fix.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(handler=None)
    parser.add_argument("--version", action="version", version=f"torchtriage {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, summary: str, handler: Handler, *, reports: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if reports:
            sub.add_argument("--json", action="store_true", help="print the whole report as one JSON object")
        sub.set_defaults(handler=handler)
        return sub

    sub = command("triage", "judge logs, dumps, bundles and archives, or the job that runs here: one verdict", _triage)
    sub.add_argument("paths", nargs="*", metavar="PATH", help="files, folders, bundles, archives")
    sub.add_argument("--live", action="store_true", help="collect from the job on this node first, and judge that")
    _add_live(sub)
    sub.add_argument("-o", "--output", metavar="PATH", help="of --live: where the bundle is kept")

    sub = command("collect", "look at all ranks of a job on this node, without harm, and keep a bundle", _collect)
    _add_live(sub)
    sub.add_argument("-o", "--output", metavar="PATH", help="a new folder, or a file that ends in .tar.zst")
    _add_native(sub)
    sub.add_argument("--launcher", action="store_true", help="also the stacks of torchrun and other launchers")
    sub.add_argument("--force-ras", action="store_true", help="ask NCCL RAS although NCCL's version cannot be told")

    sub = command("explain-symptom", "judge a pasted error or a symptom in words", _explain_symptom)
    sub.add_argument("--text", required=True, help="the error, the log lines or the symptom; - reads standard input")
    sub.add_argument("paths", nargs="*", metavar="PATH", help="files that belong to it")

    sub = command(
        "analyze-flight-recorder", "compare flight-recorder dumps over ranks: who left the common path first", _flight
    )
    sub.add_argument("paths", nargs="*", metavar="PATH", help="dumps, or folders that hold them")
    sub.add_argument("--check-env", action="store_true", help="also say whether this environment would record and dump")
    sub.add_argument(
        "--pid", action="append", type=int, default=[], metavar="PID", help="check that process; repeatable"
    )

    sub = command(
        "dump-stacks", "classify stacks over ranks, recorded or live: who does not wait where the others do", _stacks
    )
    sub.add_argument(
        "paths", nargs="*", metavar="PATH", help="dumps of py-spy, pystack or faulthandler, or their folder"
    )
    sub.add_argument("--live", action="store_true", help="dump the ranks of the job on this node")
    _add_live(sub)
    _add_native(sub)
    sub.add_argument("--output-dir", metavar="DIR", help="where live dumps go (default: $TMPDIR/halo_diag_stacks)")

    sub = command("memory-snapshot", "say what holds the GPU's memory in snapshots, and what would free it", _memory)
    sub.add_argument("paths", nargs="*", metavar="PATH", help="snapshots of ranks or moments, and logs beside them")
    sub.add_argument("--compare", action="store_true", help="list the call sites that make the difference")
    sub.add_argument("--html", metavar="FILE", help="write a page: timeline, holders, flame graph; needs no network")
    sub.add_argument("--collapsed", metavar="FILE", help="write collapsed stacks, for speedscope.app")
    sub.add_argument("--pid", type=int, metavar="PID", help="take one of a running process (Python 3.14 or later)")

    sub = command(
        "nvlink-health", "say whether NVLinks and GPUs are sound: this node's, or from what nvidia-smi printed", _nvlink
    )
    sub.add_argument("paths", nargs="*", metavar="PATH", help="recorded answers and kernel logs; none: ask this node")
    sub.add_argument("--per-link", action="store_true", help="list every link with its counters")
    sub.add_argument("--window", type=float, metavar="S", help="read counters twice, S seconds apart; tell what grew")
    sub.add_argument(
        "--baseline", action="append", default=[], metavar="FILE", help="an earlier nvidia-smi nvlink -e; repeatable"
    )

    sub = command("record-flamegraph", "record where the ranks of a running job spend their time", _flamegraph)
    _add_live(sub)
    sub.add_argument("--duration", type=float, default=30.0, metavar="S", help="seconds (default: 30)")
    sub.add_argument("--rate", type=int, default=100, metavar="HZ", help="samples a second (default: 100)")
    sub.add_argument("--native", action="store_true", help="with native frames")
    sub.add_argument("--idle", action="store_true", help="with threads that wait")
    sub.add_argument("--speedscope", action="store_true", help="also write files for speedscope.app")
    sub.add_argument("--output-dir", metavar="DIR", help="default: $TMPDIR/halo_diag_flamegraphs")

    sub = command("playbook", "look up a failure mode by id or by words, or a branch", _playbook)
    sub.add_argument("query", nargs="*", metavar="WORD", help="an id, a branch (hang, ...) or words; none lists all")

    sub = command("schema", "print a JSON Schema, to validate reports and files with", _schema)
    sub.add_argument("name", nargs="?", metavar="NAME", help="verdict, ...; leave it out to list the names")

    sub = command("serve", "serve the tools over MCP (stdio, or HTTP on this machine)", _serve, reports=False)
    sub.add_argument("--http", action="store_true", help="streamable HTTP instead of stdio")
    sub.add_argument("--host", default="127.0.0.1", help="address for --http (default: %(default)s)")
    sub.add_argument("--port", type=int, default=8765, help="port for --http (default: %(default)s)")
    sub.add_argument("--root", action="append", default=[], metavar="DIR", help="read only inside DIR; repeatable")
    sub.add_argument("--allow-live", action="store_true", help="let clients look at running processes (collect)")
    return parser


def _add_live(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", action="append", type=int, default=[], metavar="PID", help="a rank; repeatable")
    parser.add_argument("--job", metavar="KEY", help="which job, when several run here: a part of its key")


def _add_native(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--native",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="native frames of ranks too (default)",
    )


def _triage(options: argparse.Namespace) -> int:
    from torchtriage.verdict.render import render
    from torchtriage.verdict.tool import triage

    live = bool(options.live or options.pid or options.job or options.output)
    if not live and not options.paths:
        raise BadCallError("give the files or folders that the job left behind, or --live for the job that runs here")
    verdict = triage(
        options.paths, live=live, pids=options.pid, job=options.job, output=options.output, progress=_progress_bar()
    )
    return _show(verdict, render, as_json=options.json)


def _collect(options: argparse.Namespace) -> int:
    from torchtriage.bundle.tool import collect, render

    report = collect(
        pids=options.pid, output=options.output, job=options.job, native=options.native, launcher=options.launcher,
        force_ras=options.force_ras, progress=_progress_bar("probing", "probes"),
    )  # fmt: skip
    return _show(report, render, as_json=options.json)


def _flamegraph(options: argparse.Namespace) -> int:
    from torchtriage.stacks.live import record_flamegraph, render_flamegraph

    report = record_flamegraph(
        pids=options.pid, job=options.job, duration=options.duration, rate=options.rate, native=options.native,
        idle=options.idle, speedscope=options.speedscope, output_dir=options.output_dir,
    )  # fmt: skip
    return _show(report, render_flamegraph, as_json=options.json)


def _explain_symptom(options: argparse.Namespace) -> int:
    from torchtriage.verdict.render import render
    from torchtriage.verdict.tool import explain_symptom

    text = _standard_input() if options.text == "-" else options.text
    return _show(explain_symptom(text, options.paths or None, progress=_progress_bar()), render, as_json=options.json)


def _flight(options: argparse.Namespace) -> int:
    from torchtriage.flight.tool import analyze_flight_recorder, render

    report = analyze_flight_recorder(
        options.paths, check_env=options.check_env or bool(options.pid), pids=options.pid, progress=_progress_bar()
    )
    return _show(report, render, as_json=options.json)


def _stacks(options: argparse.Namespace) -> int:
    from torchtriage.stacks.tool import dump_stacks, render

    report = dump_stacks(
        options.paths or None, pids=options.pid, job=options.job, native=options.native,
        output_dir=options.output_dir, live=options.live,
    )  # fmt: skip
    return _show(report, render, as_json=options.json)


def _memory(options: argparse.Namespace) -> int:
    from torchtriage.memory.render import render
    from torchtriage.memory.tool import memory_snapshot

    report = memory_snapshot(
        options.paths, pid=options.pid, compare=options.compare, html=options.html, collapsed=options.collapsed,
        progress=_progress_bar(),
    )  # fmt: skip
    return _show(report, render, as_json=options.json)


def _nvlink(options: argparse.Namespace) -> int:
    from torchtriage.nvlink.render import render
    from torchtriage.nvlink.tool import nvlink_health

    report = nvlink_health(
        options.paths, per_link=options.per_link, window=options.window, baseline=options.baseline,
        progress=_progress_bar(),
    )  # fmt: skip
    return _show(report, render, as_json=options.json)


def _playbook(options: argparse.Namespace) -> int:
    from torchtriage.knowledge.tool import playbook, render

    return _show(playbook(" ".join(options.query)), render, as_json=options.json)


def _schema(options: argparse.Namespace) -> int:
    import json

    from torchtriage.schemas import schema, schema_names

    if options.name is None:
        names = schema_names()
        return _print(json.dumps({"schemas": names}) if options.json else "\n".join(names), 0)
    return _print(json.dumps(schema(options.name), indent=None if options.json else 2), 0)


def _serve(options: argparse.Namespace) -> int:
    from torchtriage.server import serve

    serve(roots=options.root, http=options.http, host=options.host, port=options.port, allow_live=options.allow_live)
    return 0


def _show(report: Report, render: Callable[[Any], str], *, as_json: bool) -> int:
    from torchtriage.report import exit_code

    code = exit_code(report.status)
    if as_json:
        return _print(report.model_dump_json(), code)
    text = render(report)
    if sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        first, newline, rest = text.partition("\n")
        text = f"\x1b[1m{first}\x1b[0m{newline}{rest}"
    return _print(text, code)


def _print(text: str, code: int) -> int:
    """Print the result and return its exit code, which also tells it when nobody reads the output (head, less)."""
    if sys.stdout is None:
        raise StreamError("standard output is closed: nowhere to write the result")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _silence_stdout()
    except OSError as error:
        _silence_stdout()
        raise StreamError(f"the result could not be written to standard output: {error.strerror}") from None
    return code


def _silence_stdout() -> None:
    """Python would try once more at exit, and complain then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_anything(stream: TextIO | None) -> None:
    """Escape what the terminal's encoding lacks, rather than fail on it."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _standard_input() -> str:
    if sys.stdin is None:
        raise StreamError("standard input is closed: give the text itself, or pipe it in")
    return sys.stdin.buffer.read(MAX_STDIN_BYTES).decode("utf-8", errors="replace")


def _progress_bar(doing: str = "reading", units: str = "files") -> Callable[[int, int], None] | None:
    """A one-line bar on stderr for work that takes longer than a moment; nothing when stderr is no terminal."""
    if not sys.stderr.isatty():
        return None
    started = time.monotonic()

    def show(done: int, total: int) -> None:
        elapsed_s = time.monotonic() - started
        if elapsed_s < 0.5:
            return
        # A single large file moves the bar only at its end: the seconds show that it is being read.
        told = f"{done}/{total} {units}, {elapsed_s:.0f} s"
        width = 30 * done // max(total, 1)
        end = "\r\x1b[K" if done == total else ""
        print(f"\r{doing} [{'#' * width:<30}] {told}{end}", end="", file=sys.stderr, flush=True)

    return show


if __name__ == "__main__":
    sys.exit(main())
