"""The numbers of out-of-memory messages, in the words of each version and device."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtriage.logs.crashes.out_of_memory import is_cut, memory_facts, says_out_of_memory

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
ADVICE = " If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation."
MODERN = (
    "CUDA out of memory. Tried to allocate 3.25 GiB. GPU 5 has a total capacity of 80.00 GiB of which 1.50 GiB is "
    "free. Process 4711 has 20.00 GiB memory in use. Including non-PyTorch memory, this process has 58.00 GiB memory "
    "in use. Of the allocated memory 44.00 GiB is allocated by PyTorch, and 6.00 GiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True"
)


def told(message: str, *names: str) -> tuple[object, ...]:
    facts = memory_facts(message)
    return tuple(facts[name] for name in names)


@pytest.mark.parametrize(
    ("message", "requested", "total", "free", "allocated", "unallocated"),
    [
        pytest.param(
            "CUDA out of memory. Tried to allocate 24.00 MiB (GPU 0; 11.00 GiB total capacity; 9.50 GiB already "
            "allocated; 14.00 MiB free; 32.00 MiB cached)",
            24 * MI, 11 * GI, 14 * MI, 9.5 * GI, 32 * MI, id="1.0 to 1.3",
        ),
        pytest.param(
            "CUDA out of memory. Tried to allocate 1.25 GiB (GPU 6; 40.00 GiB total capacity; 30.00 GiB already "
            "allocated; 0 bytes free; 36.50 GiB reserved in total by PyTorch)",
            1.25 * GI, 40 * GI, 0, 30 * GI, 6.5 * GI, id="1.4 to 2.0",
        ),
        pytest.param(
            MODERN.replace("capacity", "capacty").split(" If ")[0] + ADVICE,
            3.25 * GI, 80 * GI, 1.5 * GI, 44 * GI, 6 * GI, id="2.1",
        ),
        pytest.param(MODERN, 3.25 * GI, 80 * GI, 1.5 * GI, 44 * GI, 6 * GI, id="2.2 and later"),
        pytest.param(MODERN.replace("CUDA out", "HIP out"), 3.25 * GI, 80 * GI, 1.5 * GI, 44 * GI, 6 * GI, id="ROCm"),
        pytest.param(
            "XPU out of memory. Tried to allocate 256.00 MiB. GPU 1 has a total capacity of 48.00 GiB. Of the "
            "allocated memory 45.00 GiB is allocated by PyTorch, and 12.00 KiB is reserved by PyTorch but unallocated. "
            "Please use `empty_cache` to release all unoccupied cached memory.",
            256 * MI, 48 * GI, None, 45 * GI, 12 * KI, id="XPU",
        ),
        pytest.param(
            "NPU out of memory. Tried to allocate 512 bytes (NPU 2; 32.00 GiB total capacity; 28.00 GiB already "
            "allocated; 28.00 GiB current active; 3.00 MiB free; 29.00 GiB reserved in total by PyTorch)",
            512, 32 * GI, 3 * MI, 28 * GI, GI, id="NPU",
        ),
        pytest.param(
            "MPS backend out of memory (MPS allocated: 17.50 GB, other allocations: 64.00 KB, max allowed: 18.00 GB). "
            "Tried to allocate 256.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
            256 * MI, None, None, 17.5 * GI, None, id="MPS",
        ),
    ],
)  # fmt: skip
def test_the_words_of_each_version_and_device_are_numbers(message, requested, total, free, allocated, unallocated):
    names = ("requested_bytes", "total_bytes", "free_bytes", "allocated_bytes", "reserved_unallocated_bytes")
    assert told(message, *names) == (requested, total, free, allocated, unallocated)
    assert says_out_of_memory(message)
    assert memory_facts(message)["caching_allocator"]


def test_what_is_not_torchs_is_the_process_without_what_the_allocator_holds():
    assert told(MODERN, "non_pytorch_bytes", "non_pytorch_share", "own_share") == (8 * GI, 0.1, 0.725)


def test_other_processes_are_told_with_their_numbers():
    facts = memory_facts(MODERN)
    assert (facts["other_pids"], facts["other_processes_bytes"], facts["other_processes_share"]) == (
        [4711],
        [20 * GI],
        0.25,
    )


def test_a_process_that_the_driver_knows_by_another_number_is_not_another_one():
    message = MODERN.replace("Including non-PyTorch memory, this process has", "Process 9 has")
    assert told(message, "this_process_bytes", "other_pids") == (58 * GI, [4711])


def test_private_pools_of_graphs_are_told_beside_what_is_reserved():
    message = MODERN.replace(
        "PyTorch, and", "PyTorch, with 10.00 GiB allocated in private pools (e.g., CUDA Graphs), and"
    )
    assert told(message, "private_pools_bytes", "private_pool_share") == (10 * GI, 0.2)


@pytest.mark.parametrize(
    ("message", "capped"),
    [
        (MODERN, False),
        (MODERN.replace("Of the", "50.00 GiB allowed; Of the"), False),
        (MODERN.replace("1.50 GiB is free", "70.00 GiB is free").replace("Of the", "50.00 GiB allowed; Of the"), True),
        ("CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
         "limit.", True),
    ],
)  # fmt: skip
def test_a_limit_of_the_process_is_what_refused_only_where_the_card_had_room(message, capped):
    assert memory_facts(message)["fraction_capped"] is capped


def test_one_request_is_held_against_what_the_process_may_use():
    message = MODERN.replace("Of the", "6.50 GiB allowed; Of the")
    assert told(message, "allowed_bytes", "single_request_share") == (6.5 * GI, 0.5)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate more than 1EB memory.",
        "CUDA out of memory. Tried to allocate 8388608.00 TiB (GPU 0; 40.00 GiB total capacity; 1.00 GiB already",
    ],
)
def test_an_impossible_size_is_corrupt(message):
    assert memory_facts(message)["corrupt_size"]
    assert not memory_facts(MODERN)["corrupt_size"]


@pytest.mark.parametrize("width", [40, 61, 80, 97, 120])
def test_a_message_that_is_broken_over_lines_tells_the_same(width):
    words: list[str] = [""]
    for word in MODERN.split(" "):
        if len(words[-1]) + len(word) > width:
            words.append(word)
        else:
            words[-1] = f"{words[-1]} {word}".strip()
    assert memory_facts("\n".join(words)) == memory_facts(MODERN)


@pytest.mark.parametrize("width", [31, 57, 80, 113])
def test_a_message_that_is_broken_inside_words_tells_no_wrong_number(width):
    whole = memory_facts(MODERN)
    broken = memory_facts("\n".join(MODERN[at : at + width] for at in range(0, len(MODERN), width)))
    sizes = [name for name in whole if name.endswith("_bytes") and isinstance(whole[name], int)]
    assert {name: broken[name] for name in sizes} == {name: whole[name] for name in sizes}


@pytest.mark.parametrize("kept", range(45, len(MODERN), 23))
def test_a_cut_message_tells_what_is_there_and_nothing_else(kept):
    whole, cut = memory_facts(MODERN), memory_facts(MODERN[:kept])
    sizes = [name for name in whole if name.endswith("_bytes") and cut[name] not in (None, [])]
    assert {name: cut[name] for name in sizes} == {name: whole[name] for name in sizes}
    if cut["reserved_unallocated_bytes"] is None:
        assert (cut["fits_in_reserved"], cut["non_pytorch_bytes"], cut["unallocated_per_request"]) == (None, None, None)


def test_a_message_is_cut_until_its_last_number():
    assert is_cut(MODERN[:200])
    assert not is_cut(MODERN)
    assert not is_cut("CUDA error: out of memory")


@pytest.mark.parametrize(
    "text", ["CUDA error: out of memory", "cuda runtime error (2) : out of memory", "out of memory"]
)
def test_a_runtime_error_is_none_of_the_allocator(text):
    assert not memory_facts(text)["caching_allocator"]


UNITS = {"bytes": 1, "KiB": KI, "MiB": MI, "GiB": GI, "TiB": 1 << 40}
sizes = st.tuples(st.integers(0, 102_399), st.sampled_from(sorted(UNITS)))


@given(numbers=st.lists(sizes, min_size=5, max_size=5), gpu=st.integers(0, 15))
@settings(deadline=None)
def test_any_numbers_are_read_back(numbers, gpu):
    texts = [f"{n / 100:.2f} {unit}" for n, unit in numbers]
    asked, total, free, allocated, unallocated = texts
    facts = memory_facts(
        f"CUDA out of memory. Tried to allocate {asked}. GPU {gpu} has a total capacity of {total} of which {free} is "
        f"free. Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is reserved by PyTorch "
        "but unallocated."
    )
    names = ("requested_bytes", "total_bytes", "free_bytes", "allocated_bytes", "reserved_unallocated_bytes")
    assert [facts[name] for name in names] == [round(float(f"{n / 100:.2f}") * UNITS[unit]) for n, unit in numbers]
    assert facts["gpu"] == gpu


PIECES = [
    "CUDA out of memory. Tried to allocate ", "GPU 0 has a total capacity of ", " is free. ", "1.00 GiB", "0 bytes",
    "Process 1 has ", " memory in use. ", "this process has ", " is allocated by PyTorch, ", " allowed; ", "9" * 40,
    " reserved in total by PyTorch", " is reserved by PyTorch but unallocated.", "more than 1EB memory.", "\x00", "-",
    "(GPU 1; ", "\n",
]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=12)), max_size=60).map("".join))
@settings(deadline=None, max_examples=300)
def test_no_text_breaks_the_reader_or_makes_a_number_negative(text):
    facts = memory_facts(text)
    assert all(value >= 0 for value in facts.values() if isinstance(value, (int, float)))
    is_cut(text)
