import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.knowledge.cached import load_yaml
from torchtriage.knowledge.locate import data_root
from torchtriage.prose.read import MAX_LINES
from torchtriage.prose.telling import NOTHING, PRINTED, PROSE, load_boilerplate, telling

KINDS = load_yaml(data_root() / "skill" / "boilerplate.yaml")["boilerplate"]
EXAMPLES = [line for kind in KINDS for line in kind["matches"]]
NEAR_MISSES = [line for kind in KINDS for line in kind["rejects"]]


@pytest.mark.parametrize("line", EXAMPLES)
def test_what_any_job_prints_tells_nothing(line: str) -> None:
    assert telling(line) == [NOTHING]


@pytest.mark.parametrize("line", NEAR_MISSES)
def test_a_near_miss_of_boilerplate_tells_something(line: str) -> None:
    assert telling(line) != [NOTHING]


def test_every_expression_of_boilerplate_has_an_example() -> None:
    for regex in load_boilerplate():
        assert any(regex.search(line) for line in EXAMPLES), regex.pattern


def test_what_a_person_wrote_tells_more_than_what_was_printed() -> None:
    text = "It hangs when the epoch is over.\n[rank3]: RuntimeError: CUDA error: out of memory"
    assert telling(text) == [PROSE, PRINTED]


def test_a_run_of_settings_tells_nothing_and_a_single_one_does() -> None:
    settings = "model: llama\nlr: 1e-4\nsave_steps: 500\nconfiguration:\nbf16: true"
    assert telling(settings) == [NOTHING] * 5
    assert telling("We set this:\nnum_workers: 0\n\nand then it is fine.")[1] > NOTHING


def test_only_the_innermost_frames_of_a_traceback_tell_something() -> None:
    frames = [f'[rank0]:   File "/x/f{n}.py", line {n}, in f{n}\n[rank0]:     call{n}()' for n in range(5)]
    text = "\n".join(["[rank0]: Traceback (most recent call last):", *frames, "[rank0]: KeyError: 'image'"])
    assert telling(text) == [PRINTED, *[NOTHING] * 6, *[PRINTED] * 5]


def test_a_short_traceback_is_kept_whole() -> None:
    text = '  File "a.py", line 1, in f\n    g()\n  File "b.py", line 2, in g\n    h()\nKeyError: 1'
    assert NOTHING not in telling(text)


@given(st.text())
def test_every_line_has_a_weight(text: str) -> None:
    weights = telling(text)
    assert len(weights) == len(text.split("\n", MAX_LINES)[:MAX_LINES])
    assert all(0 <= weight <= 1 for weight in weights)
