"""The MCP door as hosts use it: a process of its own, over stdio and over HTTP, in both protocol eras."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import Tool

import torchtriage

LIMIT_S = 90.0
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
CLIENT = {"name": "test", "version": "0"}
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
ENVIRONMENT = {"PYTHONPATH": str(Path(torchtriage.__file__).parents[1])}


class Wire:
    """A spawned server whose every byte on stdout is looked at."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[bytes] = []

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The whole answer to one request; notifications before it are passed over."""
        self.send({"id": number, "method": method, "params": params})
        assert self.process.stdout
        while True:
            line = self.process.stdout.readline()
            assert line, f"the server ended instead of answering {method}"
            self.lines.append(line)
            message = json.loads(line)
            if message.get("id") == number:
                return message

    def end(self) -> int:
        """Close stdin as a host does; the exit code, once the process ended by itself."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.lines += self.process.stdout.readlines()
        return self.process.wait()


@contextlib.contextmanager
def spawned(*arguments: str) -> Iterator[Wire]:
    """``torchtriage serve`` over pipes; ended by force only when it does not answer or end in time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torchtriage", "serve", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
    )
    guard = threading.Timer(LIMIT_S, process.kill)
    guard.start()
    try:
        with process:
            try:
                yield Wire(process)
            finally:
                if process.stdin and not process.stdin.closed:
                    process.kill()
    finally:
        guard.cancel()


def arguments_for(tool: Tool, folder: Path) -> dict[str, Any]:
    """Arguments that satisfy a tool's own input schema; a new kind of argument needs a line here."""
    known: dict[str, Any] = {
        "paths": [str(folder)],
        "text": "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60",
        "query": "uneven batches",
    }
    accepted, required = set(tool.input_schema["properties"]), set(tool.input_schema.get("required", ()))
    assert required <= set(known), f"no argument for {sorted(required - set(known))} of {tool.name} is known here"
    wanted = required | (accepted & {"paths", "query"})
    return {name: value for name, value in known.items() if name in wanted}


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_each_handshake_version_is_answered_with_itself_and_stdout_holds_only_json(version: str, cases: Path) -> None:
    with spawned("--root", str(cases)) as wire:
        asked = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
        result = wire.ask(1, "initialize", asked)["result"]
        assert result["protocolVersion"] == version
        assert result["serverInfo"]["name"] == "torchtriage"
        assert result["instructions"]
        wire.send({"method": "notifications/initialized"})
        tools = wire.ask(2, "tools/list", {})["result"]["tools"]
        assert "triage" in [tool["name"] for tool in tools]
        inputs = str(cases / "case-001" / "inputs")
        verdict = wire.ask(3, "tools/call", {"name": "triage", "arguments": {"paths": [inputs]}})["result"]
        assert verdict.get("isError") is not True
        assert verdict["content"][0]["text"].startswith("DIAGNOSED")
        assert wire.end() == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in wire.lines)


def test_an_unknown_handshake_version_is_answered_with_the_newest_known(cases: Path) -> None:
    with spawned("--root", str(cases)) as wire:
        asked = {"protocolVersion": "2030-01-01", "capabilities": {}, "clientInfo": CLIENT}
        assert wire.ask(1, "initialize", asked)["result"]["protocolVersion"] == HANDSHAKE_VERSIONS[-1]
        assert wire.end() == 0


def test_the_stateless_era_is_served_without_a_handshake(cases: Path) -> None:
    with spawned("--root", str(cases)) as wire:
        found = wire.ask(1, "server/discover", {"_meta": MODERN_META})["result"]
        assert found["supportedVersions"] == [MODERN_VERSION]
        assert "tools" in found["capabilities"]
        tools = wire.ask(2, "tools/list", {"_meta": MODERN_META})["result"]["tools"]
        assert "triage" in [tool["name"] for tool in tools]
        inputs = str(cases / "case-001" / "inputs")
        call = {"_meta": MODERN_META, "name": "triage", "arguments": {"paths": [inputs]}}
        verdict = wire.ask(3, "tools/call", call)["result"]
        assert verdict["structuredContent"]["culprits"]["ranks"] == [1]
        assert wire.end() == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in wire.lines)


def test_a_line_that_is_no_message_does_not_end_the_server(cases: Path) -> None:
    with spawned("--root", str(cases)) as wire:
        assert wire.process.stdin
        wire.process.stdin.write(b"this is not JSON\n\xff\xfe\n")
        wire.process.stdin.flush()
        assert wire.ask(1, "server/discover", {"_meta": MODERN_META})["result"]["supportedVersions"] == [MODERN_VERSION]
        assert wire.end() == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in wire.lines)


def test_the_server_ends_when_stdin_closes_before_any_request() -> None:
    with spawned() as wire:
        assert wire.end() == 0
    assert wire.lines == []


def test_http_without_a_root_is_refused_at_the_start() -> None:
    with spawned("--http", "--port", "1") as wire:
        assert wire.end() == 2
    assert wire.lines == []


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_every_tool_and_resource_answers_a_client_over_stdio(mode: str, cases: Path) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "torchtriage", "serve", "--root", str(cases)], env=ENVIRONMENT
    )
    async with Client(server, mode=mode) as client:
        await _everything_answers(client, cases)


async def _everything_answers(client: Client, cases: Path) -> None:
    """List and call every tool, read every resource, and be refused outside the roots."""
    tools = (await client.list_tools()).tools
    assert {"triage", "explain_symptom", "analyze_flight_recorder", "dump_stacks", "playbook"} <= {
        t.name for t in tools
    }
    for tool in tools:
        result = await client.call_tool(tool.name, arguments_for(tool, cases / "case-006" / "inputs"))
        if tool.annotations is not None and tool.annotations.read_only_hint is False:  # looks at processes: not allowed
            assert result.is_error is True
            assert "--allow-live" in result.content[0].text
            continue
        assert result.is_error is not True, (tool.name, result.content)
        assert result.content[0].text.strip()
        jsonschema.validate(result.structured_content, tool.output_schema or {})
        assert (result.structured_content or {})["tool"] == tool.name
    resources = (await client.list_resources()).resources
    assert resources
    for resource in resources:
        (content,) = (await client.read_resource(str(resource.uri))).contents
        assert content.text.strip()
    for template in (await client.list_resource_templates()).resource_templates:
        uri = template.uri_template.replace("{failure_mode}", "uneven-batches-per-rank").replace("{branch}", "hang")
        (content,) = (await client.read_resource(uri)).contents
        assert content.text.strip()
    outside = await client.call_tool("triage", {"paths": ["/etc/hostname"]})
    assert outside.is_error is True
    assert "outside the folders" in outside.content[0].text


@pytest.fixture(scope="module")
def http_port(cases: Path) -> Iterator[int]:
    """The port of a server over HTTP that is ready to answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "torchtriage", "serve", "--http", "--root", str(cases), "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
    )
    with process:
        try:
            _wait_until_ready(process, port)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        # Waiting for its end is the pause between two attempts, and notices a server that could not start.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            break
    raise AssertionError(f"the server did not listen; exit code {process.poll()}")


def initialize_over_http(port: int, host: str, origin: str | None = None) -> tuple[int, str]:
    """Status and body of a raw ``initialize`` with a given Host header."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    params = {"protocolVersion": HANDSHAKE_VERSIONS[-1], "capabilities": {}, "clientInfo": CLIENT}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    headers = {"Host": host, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if origin is not None:
        headers["Origin"] = origin
    with contextlib.closing(connection):
        connection.request("POST", "/mcp", body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8")


def test_http_answers_this_machine(http_port: int) -> None:
    status, body = initialize_over_http(http_port, f"127.0.0.1:{http_port}")
    assert status == 200
    assert json.loads(body)["result"]["serverInfo"]["name"] == "torchtriage"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_http_refuses_another_host_header(host: str, http_port: int) -> None:
    status, body = initialize_over_http(http_port, host)
    assert status == 421
    assert "torchtriage" not in body


def test_http_refuses_a_page_of_another_origin(http_port: int) -> None:
    status, body = initialize_over_http(http_port, f"127.0.0.1:{http_port}", origin="https://evil.example")
    assert status == 403
    assert "torchtriage" not in body


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_every_tool_and_resource_answers_a_client_over_http(mode: str, http_port: int, cases: Path) -> None:
    async with Client(f"http://127.0.0.1:{http_port}/mcp", mode=mode) as client:
        await _everything_answers(client, cases)
