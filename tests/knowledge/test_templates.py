"""Message templates: data that recognises its own lines, wherever they stand, and costs nothing on any other line."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import torchtriage
from torchtriage import cli
from torchtriage.knowledge.cached import cache_folder, read_kept
from torchtriage.knowledge.entries import Condition, Entry, Proof
from torchtriage.knowledge.load import Playbook, load_playbook
from torchtriage.knowledge.locate import data_root
from torchtriage.knowledge.regex_cost import regex_problems
from torchtriage.knowledge.templates import ROLES, Template, parse_section, template_of_pattern
from torchtriage.knowledge.tool import playbook
from torchtriage.knowledge.tool import render as render_playbook
from torchtriage.knowledge.validate import problems
from torchtriage.knowledge.validate_templates import reference_problems
from torchtriage.logs.scan.read import PatternSet, scan, text_source
from torchtriage.report import DIAGNOSED_FROM
from torchtriage.verdict.decide import decide
from torchtriage.verdict.findings import Findings, Observation
from torchtriage.verdict.gather import scan_logs
from torchtriage.verdict.recognised import MAX_RECOGNISED, recognise, recognise_beside
from torchtriage.verdict.render import render

ROOT = data_root()
FILES = sorted((ROOT / "playbook" / "templates").glob("*.yaml"))
STUCK = (
    "[rank{rank}]:[E1130 12:00:00.123456789 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  "
    "failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: 15, last completed work: 11"
)
TIMED_OUT = (
    "[rank1]:[E1130 12:00:00.123456789 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600010 "
    "milliseconds before timing out."
)
TAKEN_DOWN = (
    "[rank1]:[E1130 12:00:00.123456789 ProcessGroupNCCL.cpp:695] [Rank 1] To avoid data inconsistency, we are taking "
    "the entire process down."
)
SMALL = """\
section: small
title: A small section
templates:
  - id: SM1
    means: Something happened that is good for a test.
    role: cascade
    versions: all
    text: ["something odd happened", "odd happened here"]
    regex: 'happened here (?P<code>\\d{1,9})'
    matches:
      - line: "something odd happened here 12"
        fields: {code: "12"}
    rejects: ["something odd happened"]
"""


def examples() -> list[tuple[str, str, dict[str, str]]]:
    """Template, line and fields of all examples of all sections."""
    return [
        (template["id"], example["line"], example.get("fields", {}))
        for path in FILES
        for template in parse_section(path.read_text(encoding="utf-8"), path.name)["templates"]
        for example in template["matches"]
    ]


def small_root(tmp_path: Path, text: str = SMALL, name: str = "small") -> Path:
    folder = tmp_path / "playbook"
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    for schema in ("schema.json", "templates.schema.json"):
        shutil.copy(ROOT / "playbook" / schema, folder / schema)
    (folder / "templates" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def template(name: str = "SM1", role: Any = "symptom", **changes: Any) -> Template:
    made = Template(name, "small", "It happened.", role, "all", "", (f"literal of {name} here",), None)
    return replace(made, **changes)


def book_of(*templates: Template) -> Playbook:
    return Playbook(entries={}, root=Path(), key="", templates={t.id: t for t in templates})


def observed(text: str, book: Playbook) -> list[Observation]:
    findings = Findings()
    scan_logs([text_source(text)], book, findings)
    return [o for o in findings.observations if o.name == "log.template"]


def entry(*conditions: Condition) -> Entry:
    some = next(iter(load_playbook().entries.values()))
    return replace(some, id="made-up", proves=(Proof(conditions),), supports=(), excludes=(), refines=())


def test_every_section_is_in_the_playbook() -> None:
    assert {t.section for t in load_playbook().templates.values()} == {path.stem for path in FILES}


def test_the_sections_on_collectives_are_there() -> None:
    known = load_playbook().templates
    for prefix, count in (("WD", 26), ("DS", 4), ("FR", 2), ("IN", 13), ("EL", 9), ("NE", 14)):
        assert {f"{prefix}{n}" for n in range(1, count + 1)} <= known.keys()


@pytest.mark.parametrize(
    "prefix",
    ["[rank5]: ", "2026-11-30T12:00:00.123456Z ", "(WorkerDict pid=4100) ", "[default5]:"],
)
def test_lines_are_recognised_behind_any_usual_prefix(prefix: str) -> None:
    patterns = PatternSet([p for t in load_playbook().templates.values() for p in t.patterns()])
    lost: list[str] = []
    for name, line, fields in examples():
        timeline = scan([text_source(prefix + line)], patterns)
        facts = {k: v for k, v in fields.items() if not k.startswith("rank")}
        ranks = tuple(sorted({int(v) for k, v in fields.items() if k.startswith("rank")}))
        if not any(
            (template_of_pattern(h.pattern_id), h.facts, h.ranks) == (name, facts, ranks) for h in timeline.hits
        ):
            lost.append(f"{name}: {prefix}{line[:100]}")
    assert lost == []


def test_hostile_lines_stay_cheap() -> None:
    known = load_playbook().templates.values()
    patterns = PatternSet([p for t in known for p in t.patterns()])
    lines = [(t.texts[0] + filler * 9000)[:16384] for t in known for filler in ("0", " ", "a, ")]
    lines += [(text * 400)[:16384] for t in known for text in t.texts]
    began = time.thread_time()
    scan([text_source("\n".join(lines))], patterns)
    # About ten times of what it takes; one search that is quadratic takes longer than all of this.
    assert (time.thread_time() - began) / len(lines) < 0.03


@pytest.mark.parametrize(
    "regex",
    [r"(a+)+b", r"a+a+b", r"(?P<x>[ab]+)[^c]*c", r"\d+foo", r".*foo.*bar", r"(\w+\s?)+$", r"a.{0,300}b.{0,300}c", "("],
)
def test_a_regex_that_takes_more_than_linear_time_is_found(regex: str) -> None:
    assert len(regex_problems(regex)) == 1


@pytest.mark.parametrize(
    "regex", [r"x\d+y", r"lit .{0,100}? (?P<x>\d{1,9})", r"x[ab]{1,9}c", r"(?:ab)+c", r"(?<!x)a|b$"]
)
def test_a_regex_that_takes_linear_time_is_not(regex: str) -> None:
    assert regex_problems(regex) == []


def test_a_message_of_two_literals_is_counted_once(tmp_path: Path) -> None:
    made = template(texts=("something odd happened", "odd happened here"))
    line = "[rank2]: something odd happened here"
    (found,) = observed("\n".join([line] * 70), book_of(made))
    assert (found.facts["count"], found.ranks, found.evidence[0].where) == (70, frozenset({2}), "1")
    (found,) = observed("[rank2]: something odd happened\n[rank2]: odd happened here", book_of(made))
    assert found.facts["count"] == 2


def test_what_later_lines_tell_is_not_lost() -> None:
    book = load_playbook()
    text = "\n".join(STUCK.format(rank=1, seq=seq) for seq in (12, 13, 12))
    found = [o for o in observed(text, book) if o.facts["template"] == "WD8"]
    assert [(o.facts["seq"], o.facts["last_completed"], o.facts["count"]) for o in found] == [(12, 11, 3), (13, 11, 3)]
    assert all(o.evidence[0].signal == "log.template" for o in found)


def test_a_condition_may_name_messages_and_their_fields() -> None:
    made = replace(book_of(*load_playbook().templates.values()), entries={"made-up": entry()})
    observations = observed(STUCK.format(rank=3, seq=12), made)
    for where, holds in (({"seq": 12}, True), ({"seq": 13}, False), ({"last_enqueued": {"min": 15}}, True)):
        condition = Condition(templates=("WD7", "WD8"), where=where)
        made.entries["made-up"] = entry(condition)
        decision = decide(made, observations, [0, 1, 2, 3])
        assert [a.ranks for a in decision.assessments] == ([frozenset({3})] if holds else [])
        assert not holds or decision.assessments[0].confidence >= DIAGNOSED_FROM


def test_what_only_follows_from_another_end_proves_nothing_alone() -> None:
    known = {t.id: t for t in (template("SM1", "cascade"), template("SM2", "symptom", regex=r"(?P<code>\d{1,9})"))}
    (found,) = reference_problems(entry(Condition(templates=("SM2", "SM1"))), known)
    assert "never the root" in found
    assert list(reference_problems(entry(Condition(templates=("SM1",)), Condition(signals=("x.y",))), known)) == []
    assert list(reference_problems(entry(Condition(templates=("SM2",), where={"code": 1, "count": 2})), known)) == []
    assert "no field cod" in next(reference_problems(entry(Condition(templates=("SM2",), where={"cod": 1})), known))
    assert "no message" in next(reference_problems(entry(Condition(templates=("SM3",))), known))


def test_a_small_section_is_valid(tmp_path: Path) -> None:
    assert problems(small_root(tmp_path)) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("section: small", "section: other", "must be called other.yaml"),
        ("role: cascade", "role: culprit", "'culprit' is not one of"),
        ("    versions: all\n", "", "'versions' is a required property"),
        ('"something odd happened", ', '"odd", ', "is too short"),
        ('"something odd happened", ', '"something else", ', "no matching line holds 'something else'"),
        (r"(?P<code>\d{1,9})", r"(?P<code>\d{1,9}", "missing )"),
        (r"(?P<code>\d{1,9})", r"(?P<role>\d{1,9})", "must not be called role"),
        (r"happened here (?P<code>\d{1,9})", r"(?P<code>(\d+)+)", "a repeat inside a repeat"),
        ("happened here 12", "happened here twelve", "the regex does not match"),
        ("something odd happened here 12", "we saw no odd happened here 12", "a person's sentence"),
        ('{code: "12"}', '{code: "13"}', "not {'code': '13'}"),
        ('["something odd happened"]', '["odd happened here 1"]', "which it should reject"),
        ("section: small", "section: [", "is not YAML"),
    ],
)
def test_what_is_wrong_with_a_section_is_said(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert old in SMALL
    assert complaint in "\n".join(problems(small_root(tmp_path, SMALL.replace(old, new))))


def test_an_id_is_given_once(tmp_path: Path) -> None:
    root = small_root(small_root(tmp_path), SMALL.replace("section: small", "section: other"), "other")
    assert "SM1: the id is taken in templates/other.yaml" in "\n".join(problems(root))


def test_the_index_keeps_no_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = small_root(tmp_path)
    load_playbook.cache_clear()
    parsed = load_playbook(root)
    (path,) = cache_folder().glob("playbook-*.json")
    (section,) = read_kept(path.name)["templates"]
    assert not {"matches", "rejects"} & section["templates"][0].keys()
    load_playbook.cache_clear()
    (root / "playbook" / "templates" / "small.yaml").touch()
    assert load_playbook(root) == parsed
    assert parsed.templates["SM1"].texts == ("something odd happened", "odd happened here")
    load_playbook.cache_clear()


def test_a_pasted_text_is_told_what_its_lines_mean() -> None:
    verdict = torchtriage.explain_symptom(text=f"{TIMED_OUT}\n{STUCK.format(rank=1, seq=12)}\n{TAKEN_DOWN}")
    found = {r.template: r for r in verdict.recognised}
    # The prefix of these lines says nothing that the messages behind it do not say.
    assert list(found) == ["WD2", "WD8", "WD12"]
    assert (found["WD2"].ranks, found["WD2"].count, found["WD2"].evidence.where) == ([1], 1, "1")
    text = render(verdict)
    assert "What the lines mean:" in text
    assert "(WD12; rank 1)" in text


def test_the_command_line_tells_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["explain-symptom", "--json", "--text", TIMED_OUT])
    (found,) = json.loads(capsys.readouterr().out)["recognised"]
    assert (found["template"], found["role"], found["ranks"]) == ("WD2", "symptom", [1])


def test_causes_come_first_and_few_are_told() -> None:
    made = [template(f"SM{n}", role) for n, role in enumerate(reversed(ROLES * 2), start=1)]
    book = book_of(*made)
    observations = observed("\n".join(f"[rank0]: {t.texts[0]}" for t in made), book)
    found = recognise(observations, book, pasted=True)
    assert [r.role for r in found] == [role for role in ROLES for _ in range(2)][:MAX_RECOGNISED]
    of_logs = recognise(observations, book, pasted=False)
    assert [r.role for r in of_logs] == [
        role for role in ("cause", "ambiguous", "symptom", "cascade") for _ in range(2)
    ]
    beside = recognise_beside(observations, book, [found[0].evidence])
    assert [r.role for r in beside] == ["cause", "ambiguous", "ambiguous"]


def test_the_playbook_explains_a_message_by_its_id_and_by_its_line() -> None:
    for query in ("wd8", STUCK.format(rank=1, seq=12)):
        report = playbook(query)
        assert report.status == "found"
        assert report.text.startswith("WD8 (symptom")
        assert report.text.strip() in render_playbook(report)
    assert "Named by: rank-bound-to-wrong-gpu" in playbook("IN11").text
    assert playbook("IN11").hits[0].failure_mode == "rank-bound-to-wrong-gpu"


def test_words_about_a_job_are_no_message() -> None:
    assert playbook("training hangs after an epoch").text == ""
