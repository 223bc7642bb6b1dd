"""What becomes of a rank's metrics over its run: signals where something is wrong, silence where all is well."""

from __future__ import annotations

import itertools
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logs.metrics.metric_runs import FORMS, Run, Values, change, healthy, slower
from torchtriage.logs.analyze import analyze
from torchtriage.logs.scan.read import LogSource, PatternSet, scan, text_source
from torchtriage.signals import SIGNALS

if TYPE_CHECKING:
    from torchtriage.report import Signal

NO_PATTERNS = PatternSet([])
WITH_STEP_TIMES = ["plain", "stamps", "megatron", "titan", "lightning", "json"]
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def signals(text: str) -> list[Signal]:
    return analyze(scan([text_source(text)], NO_PATTERNS)).signals


def named(text: str, name: str) -> list[Signal]:
    return [signal for signal in signals(text) if signal.name == name]


def judged(text: str) -> set[str]:
    """Names of the signals that are not signs of health."""
    return {signal.name for signal in signals(text) if SIGNALS[signal.name].health != "good"}


def thinned(text: str) -> str:
    """The first lines, evenly spaced ones and the last ones: what is left of a log too long to be read whole."""
    lines = text.split("\n")
    kept = [*range(100), *range(100, len(lines) - 100, 27), *range(len(lines) - 100, len(lines))]
    return "\n".join(lines[i] for i in kept)


# healthy runs


@pytest.mark.parametrize("seed", range(30))
def test_healthy_runs_are_silent_in_every_form(seed):
    for number, form in enumerate(FORMS):
        run = healthy(1000 + 10 * seed + number, n_steps=[60, 300, 800][seed % 3], n_ranks=[1, 2, 4][seed % 3])
        assert judged(run.text(form)) <= {"log.periodic_stall"}, form


@pytest.mark.parametrize("seed", range(4))
def test_healthy_runs_that_were_thinned_are_silent(seed):
    run = healthy(seed, n_steps=3000, n_ranks=2)
    for form in ("plain", "stamps", "json"):
        assert judged(thinned(run.text(form))) <= {"log.periodic_stall"}, form


# step times and throughput


@pytest.mark.parametrize("form", WITH_STEP_TIMES)
@pytest.mark.parametrize("seed", range(3))
def test_steps_that_take_longer_for_good_are_a_jump(form, seed):
    run = slower(healthy(seed, calm=True), lambda step: 2.0 if step >= 170 else 1.0)
    wanted = "log.throughput_drop" if form == "titan" else "log.step_time_jump"
    found = named(run.text(form), wanted)[0]
    assert found.facts["factor"] == pytest.approx(2, rel=0.1)
    assert found.facts["step"] == pytest.approx(170, abs=20)
    assert found.evidence
    assert "log.step_time_drift" not in judged(run.text(form))


def test_a_jump_is_told_with_its_numbers():
    lines = [f"[rank{r}] step {s} loss 2.5 time {0.5 if s < 60 else 0.8}s" for s in range(120) for r in range(2)]
    (found,) = named("\n".join(lines), "log.step_time_jump")
    assert found.scope.ranks == [0, 1]
    assert found.facts == {
        "metric": "time", "from_s": 0.5, "to_s": 0.8, "factor": 1.6, "step": 60, "n_ranks": 2, "all_ranks": True,
    }  # fmt: skip
    assert [evidence.quote for evidence in found.evidence[:2]] == [
        "[rank0] step 59 loss 2.5 time 0.5s",
        "[rank0] step 60 loss 2.5 time 0.8s",
    ]


@pytest.mark.parametrize("form", WITH_STEP_TIMES)
def test_a_slow_stretch_that_passes_is_no_jump(form):
    run = slower(healthy(1, calm=True), lambda step: 2.0 if 150 <= step < 200 else 1.0)
    assert judged(run.text(form)) <= {"log.periodic_stall"}


@pytest.mark.parametrize("form", WITH_STEP_TIMES)
def test_a_jump_to_faster_steps_is_no_trouble(form):
    run = slower(healthy(1, calm=True), lambda step: 1.0 if step >= 150 else 2.0)
    assert judged(run.text(form)) == set()


def test_larger_batches_take_longer_and_are_no_jump():
    lines = [
        f"step {s} loss 2.5 batch_size {8 if s < 60 else 16} step_time {0.5 if s < 60 else 0.95:.2f}s"
        for s in range(120)
    ]
    assert judged("\n".join(lines)) == set()


@pytest.mark.parametrize("form", WITH_STEP_TIMES)
@pytest.mark.parametrize("seed", range(3))
def test_steps_that_get_slower_and_slower_drift(form, seed):
    run = slower(healthy(seed, calm=True), lambda step: 1 + step / 200)
    text = run.text(form)
    if form == "titan":
        (found, *_) = named(text, "log.throughput_drop")
        assert found.facts["gradual"] is True
    else:
        (found,) = named(text, "log.step_time_drift")
        assert found.facts["factor"] == pytest.approx(2.2, rel=0.15)
    assert "log.step_time_jump" not in judged(text)


def test_longer_answers_take_longer_and_are_no_drift():
    lines = [
        f"step:{s} - actor/pg_loss:0.01 - perf/time_per_step:{10 + s / 10:.2f} - response_length/mean:{400 + 4 * s}"
        for s in range(200)
    ]
    assert judged("\n".join(lines)) == set()


def test_more_tokens_in_longer_steps_are_no_drift():
    lines = [f"step {s} loss 2.5 step_time {0.5 + s / 200:.3f}s tok/s {9000 + s % 7}" for s in range(200)]
    assert judged("\n".join(lines)) == set()


@pytest.mark.parametrize("form", WITH_STEP_TIMES[:3] + WITH_STEP_TIMES[4:])
def test_a_stall_that_comes_back_has_a_period(form):
    run = slower(healthy(2, calm=True), lambda step: 6.0 if step % 20 == 7 else 1.0)
    (found,) = named(run.text(form), "log.periodic_stall")
    assert (found.facts["every_steps"], found.facts["factor"]) == (20, pytest.approx(6, rel=0.15))
    assert SIGNALS["log.periodic_stall"].health == "neutral"


def test_stalls_are_found_in_a_run_of_which_only_a_sample_is_kept():
    lines = [f"step {s} loss 2.5 step_time {4.0 if s % 500 == 0 else 0.5}s" for s in range(1, 20_001)]
    (found,) = named("\n".join(lines), "log.periodic_stall")
    assert (found.facts["every_steps"], found.facts["n_stalls"]) == (500, 40)


def test_stalls_without_a_beat_are_not_periodic():
    r = random.Random(5)
    lines = [f"step {s} loss 2.5 step_time {3.0 if r.random() < 0.05 else 0.5}s" for s in range(400)]
    assert judged("\n".join(lines)) == set()


def test_one_pause_is_neither_a_stall_nor_a_jump():
    lines = [f"step {s} loss 2.5 step_time {300.0 if s == 70 else 0.5}s" for s in range(200)]
    assert judged("\n".join(lines)) == set()


def test_stamps_of_whole_seconds_show_no_jumps_where_steps_are_short():
    text = re.sub(r",\d{3}\]", "]", healthy(3, calm=True, n_steps=600).text("stamps"))
    assert judged(text) == set()


# slow ranks


def shifts_work(rank: int, share: float, to: str) -> Any:
    def edit(step: int, at: int, v: Values) -> None:
        if at == rank:
            excess = v.time_s * share
            setattr(v, to, getattr(v, to) + excess)
            v.backward_s = max(0.0, v.backward_s - excess)

    return edit


@pytest.mark.parametrize(("part", "phase"), [("data_s", "data"), ("forward_s", "forward")])
@pytest.mark.parametrize("n_ranks", [2, 8])
def test_a_rank_with_a_longer_part_of_its_own_is_slow(part, phase, n_ranks):
    run = change(healthy(4, calm=True, n_ranks=n_ranks), shifts_work(1, 0.4, part))
    (found,) = named(run.text("plain"), "log.slow_rank")
    assert (found.scope.ranks, found.facts["phase"], found.facts["n_ranks"]) == ([1], phase, n_ranks)
    assert found.facts["own_s"] - found.facts["peers_s"] == pytest.approx(0.4 * found.facts["step_s"], rel=0.2)
    assert len(found.evidence) == 2


def test_a_rank_that_is_slow_now_and_then_is_not_slow():
    edit = shifts_work(1, 0.4, "data_s")
    run = change(healthy(4, calm=True), lambda step, rank, v: edit(step, rank, v) if step % 3 == 0 else None)
    assert judged(run.text("plain")) == set()


def test_a_small_share_of_the_step_makes_no_slow_rank():
    assert judged(change(healthy(4, calm=True), shifts_work(1, 0.04, "data_s")).text("plain")) == set()


def test_a_longer_forward_pass_counts_only_where_less_is_waited():
    def edit(step: int, rank: int, v: Values) -> None:
        v.forward_s += v.time_s * 0.4 * (rank == 1)

    assert judged(change(healthy(4, calm=True), edit).text("plain")) == set()


def test_half_of_the_ranks_are_not_slow():
    run = healthy(4, calm=True, n_ranks=4)
    for rank in (0, 2):
        change(run, shifts_work(rank, 0.4, "data_s"))
    assert judged(run.text("plain")) == set()


# memory


def grows(rank: int, per_step: float, until: int = 10**9) -> Any:
    def edit(step: int, at: int, v: Values) -> None:
        if at == rank:
            v.allocated += per_step * min(step, until)
            v.reserved += per_step * min(step, until)

    return edit


@pytest.mark.parametrize("form", ["plain", "titan", "json"])
def test_memory_that_grows_step_after_step_names_its_rank_and_pace(form):
    run = change(healthy(6, calm=True), grows(1, 50e6))
    found = named(run.text(form), "log.memory_growth")
    assert found
    for signal in found:
        assert signal.scope.ranks == [1]
        assert signal.facts["bytes_per_step"] == pytest.approx(50e6, rel=0.3)
        assert signal.facts["on_host"] is False


def test_memory_of_a_short_run_that_grows_every_step_is_told():
    lines = [f"[rank0] step {s} loss 2.5 memory {20 + 3.1 * s:.1f} GiB" for s in range(15)]
    (found,) = named("\n".join(lines), "log.memory_growth")
    assert found.facts["bytes_per_step"] == pytest.approx(3.1 * 2**30, rel=0.1)
    assert (found.facts["from_bytes"], found.facts["step"]) == (int(29.3 * 2**30), 14)


def test_memory_that_stops_to_grow_is_no_leak():
    assert judged(change(healthy(6, calm=True), grows(1, 50e6, until=100)).text("plain")) == set()


def test_memory_that_grows_with_the_batches_is_no_leak():
    lines = [f"step {s} loss 2.5 seq_len {1000 + 10 * s} mem {20 + s / 10:.1f} GiB" for s in range(200)]
    assert judged("\n".join(lines)) == set()


def test_memory_of_the_host_that_grows_is_told_as_such():
    lines = [f"step {s} loss 2.5 rss={8000 + 40 * s}MiB" for s in range(200)]
    (found,) = named("\n".join(lines), "log.memory_growth")
    assert (found.facts["kind"], found.facts["on_host"]) == ("rss", True)


def test_a_peak_that_creeps_up_ever_more_slowly_is_no_leak():
    r = random.Random(11)
    peak, lines = 0.0, []
    for s in range(500):
        peak = max(peak, 30 + r.expovariate(0.5))
        lines.append(f"step {s} loss 2.5 max_memory_allocated={peak:.2f}GiB")
    assert judged("\n".join(lines)) == set()


# losses


@pytest.mark.parametrize("form", list(FORMS))
def test_a_spike_that_passes_is_told_and_no_trouble(form):
    def edit(step: int, rank: int, v: Values) -> None:
        v.loss *= 4 if 200 <= step < 203 else 1

    text = change(healthy(7, calm=True), edit).text(form)
    (found,) = named(text, "log.metric_spike")
    assert found.facts["factor"] == pytest.approx(4, rel=0.15)
    assert found.facts["step"] in (200, 201, 202, None)
    assert judged(text) == {"log.metric_spike"}


def test_a_spike_of_one_step_is_found_in_a_run_of_which_only_a_sample_is_kept():
    r = random.Random(1)
    lines = [f"step {s} loss {50.0 if s == 12_345 else 2.5 + r.random() / 5:.3f}" for s in range(30_000)]
    (found,) = named("\n".join(lines), "log.metric_spike")
    assert (found.facts["step"], found.facts["value"]) == (12_345, 50.0)


@pytest.mark.parametrize("form", list(FORMS))
def test_a_loss_that_falls_to_zero_at_once_is_told(form):
    def edit(step: int, rank: int, v: Values) -> None:
        if step > 200:
            v.loss = 0.0

    (found,) = named(change(healthy(8, calm=True), edit).text(form), "log.loss_exactly_zero")
    assert found.facts["step"] in (201, None)
    assert found.facts["before"] > 0.4
    assert found.facts["from_start"] is False


@pytest.mark.parametrize(
    ("norm", "word"), [("nan", "nan"), ("0.0", "zero"), ("1.5", "constant"), ("{s}.5", "varies"), (None, None)]
)
def test_a_loss_of_zero_is_told_with_its_gradient_norm(norm, word):
    lines = [
        f"{{'loss': {2.5 if s < 20 else 0.0}" + (f", 'grad_norm': {norm.format(s=s)}" if norm else "") + "}"
        for s in range(40)
    ]
    (found,) = named("\n".join(lines), "log.loss_exactly_zero")
    assert (found.facts["grad_norm"], found.facts["n_zeros"], found.facts["before"]) == (word, 20, 2.5)


def test_a_loss_that_was_never_anything_but_zero_is_told():
    (found,) = named("\n".join(f"[rank0] step {s} loss 0.0" for s in range(10)), "log.loss_exactly_zero")
    assert (found.facts["from_start"], found.facts["before"]) == (True, None)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "\n".join(f"[rank{r}] step {s} loss {2.5 * r}" for s in range(30) for r in range(2)),
            id="a stage of a pipeline without a loss",
        ),
        pytest.param(
            "\n".join(f"step {s} loss {round(2.0 * 0.8**s, 2)}" for s in range(60)), id="learnt until it rounds to zero"
        ),
        pytest.param(
            "\n".join(f"{{'loss': 0.0, 'reward': {s / 9:.2f}, 'kl': 0.0}}" for s in range(30)), id="a policy's loss"
        ),
        pytest.param(
            "\n".join(f"step {s} loss {2.5 if s < 27 else 0.0}" for s in range(30)), id="three steps are too few"
        ),
        pytest.param("\n".join(f"step {s} loss 2.5 aux_loss 0.0" for s in range(30)), id="another loss"),
    ],
)
def test_other_zeros_are_silent(text):
    assert judged(text) == set()


@pytest.mark.parametrize("form", list(FORMS))
def test_a_loss_that_climbs_back_and_stays_has_diverged(form):
    def edit(step: int, rank: int, v: Values) -> None:
        if step >= 190:
            v.loss = 7 + v.loss / 10

    (found,) = named(change(healthy(9, calm=True), edit).text(form), "log.metric_diverged")
    assert found.facts["became_nonfinite"] is False
    assert found.facts["step"] in (190, None)
    assert found.facts["to"] == pytest.approx(7.2, abs=0.3)
    assert "log.steps_even" not in {signal.name for signal in signals(change(healthy(9), edit).text("plain"))}


def test_a_loss_that_rises_a_little_has_not_diverged():
    def edit(step: int, rank: int, v: Values) -> None:
        v.loss *= 1.4 if step >= 190 else 1

    assert judged(change(healthy(9, calm=True), edit).text("plain")) == set()


def collapses(floor: float) -> Any:
    def edit(step: int, rank: int, v: Values) -> None:
        v.scale = max(floor, 2.0 ** (16 - max(0, step - 190) // 3))
        v.skipped = max(0, step - 190)

    return edit


def test_a_loss_scale_that_falls_to_its_minimum_has_collapsed():
    run = change(healthy(10, calm=True), collapses(1.0))
    (found,) = named(run.text("megatron"), "log.loss_scale_collapsed")
    assert (found.facts["from"], found.facts["to"], found.facts["skipped_steps"]) == (65536.0, 1.0, 109)
    assert found.facts["step"] == 238


@pytest.mark.parametrize("floor", [256.0, 4096.0])
def test_a_loss_scale_that_is_found_lower_has_not_collapsed(floor):
    assert judged(change(healthy(10, calm=True), collapses(floor)).text("megatron")) == set()


def test_a_loss_scale_of_one_from_the_start_is_no_collapse():
    def edit(step: int, rank: int, v: Values) -> None:
        v.scale, v.skipped = 1.0, 0

    assert judged(change(healthy(10, calm=True), edit).text("megatron")) == set()


def test_the_first_value_that_is_none_is_told_with_what_came_before():
    values = ["2.5", "2.6", "4.0", "90.0", "nan", "nan"]
    lines = [f"[rank{r}] step {s} loss {v}" for s, v in enumerate(values) for r in range(3)]
    (found,) = named("\n".join(lines), "log.nonfinite_metric")
    facts = {name: found.facts[name] for name in ("step", "value", "last_finite", "rose_before", "first_ranks")}
    assert facts == {"step": 4, "value": "nan", "last_finite": 90.0, "rose_before": True, "first_ranks": [0, 1, 2]}


def test_the_rank_of_the_earliest_step_is_the_first_even_if_it_printed_later():
    late = [f"[rank1] step {s} loss {'nan' if s >= 3 else 2.5}" for s in range(6)]
    early = [f"[rank0] step {s} loss {'nan' if s >= 4 else 2.5}" for s in range(6)]
    (found,) = named("\n".join(early + late), "log.nonfinite_metric")
    assert (found.facts["first_rank"], found.facts["first_ranks"], found.facts["step"]) == (1, [1], 3)
    assert (found.facts["rose_before"], found.facts["last_finite"]) == (False, 2.5)


# what was not read whole, and what was read in another order


@pytest.mark.parametrize("form", ["plain", "stamps", "json"])
def test_faults_are_found_in_a_thinned_log(form):
    jump = slower(healthy(2, calm=True, n_steps=3000), lambda step: 2.0 if step >= 1700 else 1.0)
    (found,) = named(thinned(jump.text(form)), "log.step_time_jump")
    assert found.facts["step"] == pytest.approx(1700, abs=60)
    drift = slower(healthy(2, calm=True, n_steps=3000), lambda step: 1 + step / 2000)
    assert named(thinned(drift.text(form)), "log.step_time_drift")
    if form != "stamps":
        leak = change(healthy(2, calm=True, n_steps=3000), grows(1, 5e6))
        assert {s.scope.ranks[0] for s in named(thinned(leak.text(form)), "log.memory_growth")} == {1}


def faulty(seed: int) -> Run:
    run = slower(healthy(seed, calm=True, n_ranks=3, n_steps=200), lambda step: 2.0 if step >= 90 else 1.0)
    return change(change(run, grows(1, 50e6)), shifts_work(2, 0.4, "data_s"))


@pytest.mark.parametrize("seed", range(3))
def test_how_ranks_are_mixed_changes_nothing(seed):
    lines = faulty(seed).text("plain").split("\n")
    by_rank: dict[int, list[str]] = {rank: lines[rank::3] for rank in range(3)}
    r = random.Random(seed)
    order = [rank for rank in by_rank for _ in by_rank[rank]]
    r.shuffle(order)
    queues = {rank: iter(texts) for rank, texts in by_rank.items()}
    mixed = [next(queues[rank]) for rank in order]
    files = [LogSource(f"rank{rank}.log", texts, rank=rank) for rank, texts in by_rank.items()]

    def seen(found: list[Signal]) -> list[Any]:
        ours = [s for s in found if s.name.startswith(("log.step_time", "log.memory", "log.slow", "log.throughput"))]
        return sorted((s.name, s.scope.ranks, sorted(s.facts.items()), [e.quote for e in s.evidence]) for s in ours)

    expected = seen(signals("\n".join(lines)))
    assert {name for name, *_ in expected} >= {"log.step_time_jump", "log.memory_growth", "log.slow_rank"}
    assert seen(signals("\n".join(mixed))) == expected
    assert seen(analyze(scan(files, NO_PATTERNS)).signals) == expected


def test_a_long_run_is_kept_in_bounded_space_with_its_ends_and_extremes():
    lines = [
        f"step {s} loss {2 + (s * 7919 % 1000) / 1000:.3f} step_time {0.5 + s % 13 / 100:.2f}s" for s in range(40_000)
    ]
    lines[23_456] = "step 23456 loss 0.001 step_time 9.0s"
    (own,) = scan([text_source("\n".join(lines))], NO_PATTERNS).metrics.owners.values()
    rows = own.rows
    assert len(rows) < 800
    steps = [row.step for row in rows]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, 39_999)
    assert 23_456 in steps
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert max(gaps) <= 128


def test_many_ranks_share_the_space():
    lines = [f"[rank{r}] step {s} loss 2.5" for s in range(300) for r in range(600)]
    owners = scan([text_source("\n".join(lines))], NO_PATTERNS).metrics.owners
    assert sum(len(own.sample.rows) for own in owners.values()) <= 80_000


def test_a_fault_of_one_of_many_ranks_is_found_among_fewer_rows_of_each():
    lines = [
        f"[rank{r}] step {s} loss 2.5 mem {20 + (s / 5 if r == 417 else 0):.1f} GiB "
        f"data_ms {90 if r == 33 else 3} step_ms 300"
        for s in range(160)
        for r in range(500)
    ]
    found = {signal.name: signal.scope.ranks for signal in signals("\n".join(lines))}
    assert found["log.memory_growth"] == [417]
    assert found["log.slow_rank"] == [33]


# anything


@QUICK
@given(st.lists(st.tuples(st.floats(), st.floats(), st.integers(0, 10**12), st.floats()), min_size=1, max_size=60))
def test_any_numbers_are_judged_without_an_error(rows):
    lines = [
        f"2026-11-30 08:00:{s % 60:02d} [rank{s % 2}] step {step} loss {a} grad_norm {b} step_time {c}s scale {a} "
        f"mem {b} GiB data_ms {c} fwd_ms {a} tok/s {b}"
        for s, (a, b, step, c) in enumerate(rows)
    ]
    signals("\n".join(lines))
    signals("\n".join(f"{{'loss': {a}, 'grad_norm': {b}}}" for a, b, _, _ in rows))


PIECES = [
    "step ", "step: 3", "loss", "=", ": ", "1e400", "0.0", "nan", "-", "1,234", "5", "s/it", "ms", "GiB", "%", " ",
    "10/100 [", "| ", "(ms)", "np.float64(", "[", "time", "memory ", "tok/s", "scale ", "Epoch: [0][ 1/9] ",
]  # fmt: skip


@QUICK
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=40))
def test_any_mixture_of_metric_pieces_is_judged_without_an_error(lines):
    signals("\n".join(lines * 3))
