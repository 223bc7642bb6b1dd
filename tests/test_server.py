"""The MCP door, in both protocol eras, in this process; test_server_process.py spawns it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ResourceTemplateReference

import torchtriage
from bundle.plain_jobs import plain_job
from stacks.live_processes import WORKER, need_ptrace, running
from torchtriage.errors import BadCallError
from torchtriage.server import build_server, serve

TOOLS = [
    "triage", "explain_symptom", "analyze_flight_recorder", "dump_stacks", "playbook", "memory_snapshot",
    "nvlink_health",
]  # fmt: skip
LIVE_TOOLS = ["collect", "record_flamegraph"]

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["auto", "legacy"])
async def client(request: pytest.FixtureRequest, cases: Path) -> AsyncIterator[Client]:
    async with Client(build_server([str(cases)]), mode=request.param) as connected:
        yield connected


async def test_every_tool_is_listed_described_and_annotated(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert [t.name for t in tools] == TOOLS + LIVE_TOOLS
    for tool in tools:
        assert tool.title
        assert 0 < len(tool.description or "") < 1000
        assert "    " not in (tool.description or "")
        assert tool.annotations
        assert tool.annotations.read_only_hint is (tool.name not in LIVE_TOOLS)
        assert tool.annotations.destructive_hint is False
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema
        assert '"title":' not in json.dumps(tool.input_schema)


async def test_triage_gives_text_that_is_complete_and_a_valid_report(client: Client, cases: Path) -> None:
    result = await client.call_tool("triage", {"paths": [str(cases / "case-001" / "inputs")]})
    assert result.is_error is False
    report = torchtriage.triage([str(cases / "case-001" / "inputs")])
    assert result.structured_content == report.model_dump(mode="json")
    text = result.content[0].text
    assert text.startswith("DIAGNOSED hang/collective-skipped-on-one-rank")
    assert "rank 1" in text
    assert len(text) < 600 * 4
    link = result.content[1]
    assert (link.type, str(link.uri)) == ("resource_link", "triage://playbook/collective-skipped-on-one-rank")
    assert link.description


async def test_every_tool_answers_with_what_its_schema_promises(client: Client, cases: Path) -> None:
    folder = str(cases / "case-006" / "inputs")
    calls = {
        "triage": {"paths": [folder]},
        "explain_symptom": {"text": "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"},
        "analyze_flight_recorder": {"paths": [folder], "check_env": True},
        "dump_stacks": {"paths": [folder]},
        "playbook": {"query": "uneven-batches-per-rank"},
        "memory_snapshot": {"paths": [folder], "compare": True},
        "nvlink_health": {"paths": [folder], "per_link": True},
    }
    schemas = {t.name: t.output_schema for t in (await client.list_tools()).tools}
    assert list(calls) == TOOLS
    for name, arguments in calls.items():
        result = await client.call_tool(name, arguments)
        assert result.is_error is False, result.content
        jsonschema.validate(result.structured_content, schemas[name] or {})
        assert result.content[0].text.strip()


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("triage", {"paths": ["/etc/passwd"]}, "outside the folders"),
        ("triage", {"paths": []}, "no path was given"),
        ("triage", {"path": ["/x"]}, "paths"),
        ("explain_symptom", {"text": "  "}, "text is empty"),
        ("playbook", {"qery": "x"}, "qery"),
        ("dump_stacks", {"paths": ["../../../../etc"]}, "outside the folders"),
        ("collect", {}, "torchtriage serve --allow-live"),
        ("collect", {"pids": [1], "output": "/tmp/x"}, "torchtriage serve --allow-live"),
        ("collect", {"force": True}, "force"),
        ("record_flamegraph", {"duration": 1}, "torchtriage serve --allow-live"),
        ("record_flamegraph", {"duration": 0}, "duration"),
    ],
)
async def test_a_wrong_call_is_a_tool_error_that_says_what_to_do(
    client: Client, tool: str, arguments: dict[str, object], words: str
) -> None:
    result = await client.call_tool(tool, arguments)
    assert result.is_error is True
    assert words in result.content[0].text
    assert "Traceback" not in result.content[0].text


async def test_every_resource_can_be_read(client: Client) -> None:
    listed = [str(r.uri) for r in (await client.list_resources()).resources]
    assert listed == ["triage://decision-tree", "triage://playbook", "triage://schema/verdict"]
    for uri in [*listed, "triage://playbook/uneven-batches-per-rank", "triage://reference/hang"]:
        (content,) = (await client.read_resource(uri)).contents
        assert content.text.strip()
    schema = json.loads((await client.read_resource("triage://schema/verdict")).contents[0].text)
    jsonschema.Draft202012Validator.check_schema(schema)
    templates = [t.uri_template for t in (await client.list_resource_templates()).resource_templates]
    assert templates == ["triage://reference/{branch}", "triage://playbook/{failure_mode}"]


@pytest.mark.parametrize("name", ["no-such-mode", "..%2F..%2Fetc%2Fpasswd"])
async def test_an_entry_that_does_not_exist_is_an_error(client: Client, name: str) -> None:
    with pytest.raises(MCPError):
        await client.read_resource(f"triage://playbook/{name}")


@pytest.mark.parametrize("name", ["no-such-branch", "HANG", "..%2F..%2FSKILL"])
async def test_a_branch_that_does_not_exist_is_an_error(client: Client, name: str) -> None:
    with pytest.raises(MCPError):
        await client.read_resource(f"triage://reference/{name}")


async def test_a_branch_has_the_same_page_as_resource_and_from_the_playbook(client: Client) -> None:
    (content,) = (await client.read_resource("triage://reference/nccl_timeout")).contents
    result = await client.call_tool("playbook", {"query": "nccl-timeout"})
    assert content.text == result.content[0].text == result.structured_content["text"]
    reference = ResourceTemplateReference(type="ref/resource", uri="triage://reference/{branch}")
    completed = await client.complete(reference, {"name": "branch", "value": "nc"})
    assert completed.completion.values == ["nccl_timeout"]


async def test_the_prompt_starts_a_triage(client: Client) -> None:
    (prompt,) = (await client.list_prompts()).prompts
    assert prompt.description
    result = await client.get_prompt("triage_job", {"path": "/workspace/run-17", "symptom": "hangs at step 40"})
    assert "/workspace/run-17" in result.messages[0].content.text
    assert "hangs at step 40" in result.messages[0].content.text


async def test_names_of_entries_are_completed(client: Client) -> None:
    reference = ResourceTemplateReference(type="ref/resource", uri="triage://playbook/{failure_mode}")
    result = await client.complete(reference, {"name": "failure_mode", "value": "uneven"})
    assert result.completion.values == ["uneven-batches-per-rank"]


async def test_progress_is_reported(client: Client, cases: Path) -> None:
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    await client.call_tool("triage", {"paths": [str(cases / "case-002" / "inputs")]}, progress_callback=note)
    assert seen == sorted(seen)
    assert seen


def test_a_root_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadCallError, match="not a folder"):
        build_server([str(tmp_path / "nowhere")])


def test_http_needs_roots() -> None:
    with pytest.raises(BadCallError, match="--root"):
        serve(http=True)


@pytest.fixture
async def live_client(tmp_path: Path) -> AsyncIterator[Client]:
    (tmp_path / "root").mkdir()
    async with Client(build_server([str(tmp_path / "root")], allow_live=True)) as connected:
        yield connected


async def test_a_live_collect_lands_inside_a_root_and_triage_takes_it(live_client: Client, tmp_path: Path) -> None:
    need_ptrace()
    with plain_job(tmp_path) as job:
        result = await live_client.call_tool("collect", {"pids": job.pids})
        assert result.is_error is False, result.content
        elsewhere = tmp_path / "root" / "named.tar.zst"
        packed = await live_client.call_tool("collect", {"pids": job.pids[:1], "output": str(elsewhere)})
        assert packed.is_error is False, packed.content
    report = result.structured_content
    schemas = {t.name: t.output_schema for t in (await live_client.list_tools()).tools}
    jsonschema.validate(report, schemas["collect"] or {})
    assert report["ranks"] == [0, 1]
    assert Path(report["bundle"]).is_relative_to(tmp_path / "root")
    assert (Path(report["bundle"]) / "manifest.json").is_file()
    assert elsewhere.is_file()
    assert f"Next: torchtriage triage {report['bundle']}" in result.content[0].text
    for bundle in (report["bundle"], str(elsewhere)):
        judged = await live_client.call_tool("triage", {"paths": [bundle]})
        assert judged.is_error is False, judged.content


async def test_flame_graphs_land_inside_a_root(live_client: Client, tmp_path: Path) -> None:
    need_ptrace()
    with running(WORKER, "squares") as process:
        result = await live_client.call_tool("record_flamegraph", {"pids": [process.pid], "duration": 1})
    assert result.is_error is False, result.content
    schemas = {t.name: t.output_schema for t in (await live_client.list_tools()).tools}
    jsonschema.validate(result.structured_content, schemas["record_flamegraph"] or {})
    assert Path(result.structured_content["output_dir"]).is_relative_to(tmp_path / "root")
    assert list((tmp_path / "root").rglob("*.svg"))


@pytest.mark.parametrize(("tool", "parameter"), [("collect", "output"), ("record_flamegraph", "output_dir")])
async def test_nothing_is_written_outside_the_roots(
    live_client: Client, tmp_path: Path, tool: str, parameter: str
) -> None:
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    for where in (tmp_path / "out", tmp_path / "root" / ".." / "out", tmp_path / "root" / "link" / "out"):
        result = await live_client.call_tool(tool, {"pids": [1], parameter: str(where)})
        assert result.is_error is True
        assert "outside the folders" in result.content[0].text
    assert not (tmp_path / "out").exists()


async def test_a_process_that_is_not_there_is_a_tool_error(live_client: Client) -> None:
    for tool in LIVE_TOOLS:
        result = await live_client.call_tool(tool, {"pids": [4194305]})
        assert result.is_error is True
        assert "no process 4194305" in result.content[0].text
