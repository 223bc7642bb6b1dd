import pytest

from torchtriage.logs.scan.prose import is_negated, is_prose


@pytest.mark.parametrize(
    "line",
    [
        "We see a device-side assert on some nodes",
        "my job says OOMKilled sometimes",
        "Has anyone seen CUDA out of memory with this?",
        "Please help, Duplicate GPU detected appears",
    ],
)
def test_what_people_write_is_prose(line: str) -> None:
    assert is_prose(line)


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
        "You can enable unused parameter detection by passing the keyword argument",
        "[rank1]: CUDA error: device-side assert triggered",
        "To avoid data inconsistency, we are taking the entire process down.".replace("we are", "it is"),
        "[E1130 06:10:32 x.cpp:764] [Rank 0] To avoid data inconsistency, we are taking the entire process down.",
        "srun: error: node1: task 3: Killed",
    ],
)
def test_what_software_prints_is_not(line: str) -> None:
    assert not is_prose(line)


@pytest.mark.parametrize(
    ("line", "negated"),
    [
        ("The job was not OOMKilled", True),
        ("there was no sign of OOMKilled", True),
        ("it wasn't OOMKilled", True),
        ("Reason: OOMKilled", False),
        ("nothing else; pod OOMKilled", False),
    ],
)
def test_a_negation_before_a_text_is_heard(line: str, *, negated: bool) -> None:
    assert is_negated(line, line.index("OOMKilled")) is negated
