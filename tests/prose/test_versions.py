import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtriage.prose.versions import MAX_MENTIONS, printed_texts, versions_in, versions_said


def told(line: str) -> list[tuple[str, str, bool]]:
    return [(m.package, m.version, m.works) for m in versions_in(line)]


@pytest.mark.parametrize(
    ("line", "package", "version"),
    [
        ("it hangs with torch 2.9.1 on eight nodes", "torch", "2.9.1"),
        ("PyTorch 2.4, two nodes", "torch", "2.4"),
        ("torch==2.3.0+cu121", "torch", "2.3.0+cu121"),
        ("[pip3] torch==2.5.1", "torch", "2.5.1"),
        ("torch                     2.3.0+cu121", "torch", "2.3.0+cu121"),
        ("PyTorch version: 2.5.1+cu124", "torch", "2.5.1+cu124"),
        ("torch.__version__ is '2.4.0a0+f70bd71'", "torch", "2.4.0a0+f70bd71"),
        ("config: gpus=8, torch=2.4.0", "torch", "2.4.0"),
        ("we are on torch2.1.2", "torch", "2.1.2"),
        ("node-0:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4", "nccl", "2.21.5+cuda12.4"),
        ("nvidia-nccl-cu12 2.26.2", "nccl", "2.26.2"),
        ("transformers 4.51", "transformers", "4.51"),
        ("transformers 4.33 dev", "transformers", "4.33.dev0"),
        ("| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |", "driver", "550.54.15"),
        ("driver 550.54", "driver", "550.54"),
        ("Python version: 3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0] (64-bit runtime)", "python", "3.10.12"),
        ("DeepSpeed info: version=0.14.4, git-hash=unknown", "deepspeed", "0.14.4"),
        ("Initializing a V1 LLM engine (v0.8.5) with config", "vllm", "0.8.5"),
        ("`accelerate==1.10.1`", "accelerate", "1.10.1"),
    ],
)
def test_a_version_behind_a_packages_name_is_in_use(line: str, package: str, version: str) -> None:
    assert told(line) == [(package, version, False)]


@pytest.mark.parametrize(
    "line",
    [
        "torch 2.5 GiB",
        "of which torch 2.50GiB is reserved",
        "84.11 GiB is allocated by PyTorch, and 20.08 GiB is reserved by PyTorch but unallocated",
        "NCCL 2.31 GB/s busbw",
        "step 2.1 took 3.3 s",
        "loss 2.103 at torch 2.05",
        "torch 10.0.0.1",
        "torch 2.0.0.1",
        "we accelerate 1.5 times",
        "lightning 2.5 seconds later",
        "CUDA used to build PyTorch: 12.4",
        "[conda] torchvision 0.18",
        "aws-ofi-nccl 1.14.0",
        "nvcr.io/nvidia/pytorch:24.05-py3",
        '"transformers_version": "4.46.1",',
        "/opt/conda/lib/python3.10/site-packages/torch-2.3.0.dist-info",
        "2026-11-30 12:00:01.250 torch",
        "requires torch>=2.4",
        "needs torch 2.4",
        "torch 2.4 or later",
        "torch 2.4+",
        "torch 2.4-2.6",
        "Is it fixed in torch 2.7?",
        "Should I upgrade to torch 2.7?",
        "this default was introduced in torch 2.6",
        "another team has torch 2.3",
        "the wheel was built for torch 2.6",
        "downgraded torch to 2.3 and we shall see",
        "the python 2.7 script",
    ],
)
def test_a_number_that_may_be_something_else_or_another_jobs_is_no_version(line: str) -> None:
    assert told(line) == []


@pytest.mark.parametrize(
    ("line", "works", "fails"),
    [
        ("works on torch 2.3, fails with 2.6", ["2.3"], ["2.6"]),
        ("Works on torch 2.3 but hangs with torch 2.6", ["2.3"], ["2.6"]),
        ("Since we upgraded torch from 2.3 to 2.6 it hangs", ["2.3"], ["2.6"]),
        ("we upgraded torch from 2.3 to 2.6", [], ["2.6"]),
        ("the image went from torch 2.6.0 -> 2.7.0", [], ["2.7.0"]),
        ("after upgrading to torch 2.6 it hangs", [], ["2.6"]),
        ("downgrading to torch 2.3 helps", ["2.3"], []),
        ("upgrading torch from 2.3 to 2.6 solved it", ["2.6"], ["2.3"]),
        ("upgrading torch from 2.3 to 2.6 does not help", [], ["2.6"]),
        ("no problem on the old box (torch 2.3), stuck on the new one (torch 2.6)", ["2.3"], ["2.6"]),
        ("it does not work on torch 2.4", [], ["2.4"]),
    ],
)
def test_of_two_versions_the_one_that_fails_is_in_use(line: str, works: list[str], fails: list[str]) -> None:
    found = told(line)
    assert [v for _, v, good in found if good] == works
    assert [v for _, v, good in found if not good] == fails


def test_each_version_is_told_once_with_its_line() -> None:
    text = "It hangs.\ntorch 2.9.1\nand again torch 2.9.1\nNCCL version 2.27.3"
    signals = versions_said(text)
    assert [(s.name, s.facts["package"], s.evidence[0].where) for s in signals] == [
        ("said.version", "torch", "2"),
        ("said.version", "nccl", "4"),
    ]
    assert all(s.evidence[0].quote in text for s in signals)


def test_every_text_that_logs_are_searched_for_leads_to_a_version() -> None:
    for printed in printed_texts():
        majors = ("2", "0", "3", "550", "1", "4")
        assert any(versions_in(f"{printed}{major}.4.1") for major in majors), printed


@given(
    st.sampled_from(["loss", "step", "took", "rank", "lr", "power", "busbw", "epoch", "alloc", "grad_norm"]),
    st.floats(0, 1000, allow_nan=False),
    st.sampled_from(["", " s", " GiB", " ms", " GB/s", "%", " W", " x", " it/s", " tokens", " hours"]),
)
def test_numbers_of_a_training_log_are_no_versions(name: str, number: float, unit: str) -> None:
    assert told(f"[rank0]: torch {name} {number:.2f}{unit} nccl {name}={number:.3f}{unit}") == []


@given(
    st.sampled_from(["torch", "PyTorch", "NCCL", "transformers", "deepspeed", "vLLM"]),
    st.integers(0, 9),
    st.integers(0, 99),
    st.sampled_from([" s", " GiB", "GiB", " MB", " ms", " GB/s", "%", " W", " it/s", " tokens", " hours", " million"]),
)
def test_a_number_with_a_unit_is_no_version(name: str, major: int, minor: int, unit: str) -> None:
    assert told(f"{name} {major}.{minor}{unit}") == []


@given(st.ip_addresses(v=4), st.times())
def test_addresses_and_times_are_no_versions(address: object, time: object) -> None:
    assert told(f"torch {address} driver {time} NCCL {address}:29500") == []


@given(st.text(max_size=500))
def test_any_text_can_be_read(text: str) -> None:
    assert len(versions_said(text)) <= MAX_MENTIONS


@given(st.lists(st.sampled_from(["torch", "2.3", "2.6", "to", "from", "works", "fails", "with", ",", "(", "?", "->"])))
def test_any_sentence_about_versions_tells_only_what_stands_in_it(words: list[str]) -> None:
    for package, version, _ in told(" ".join(words)):
        assert package == "torch"
        assert version in words
