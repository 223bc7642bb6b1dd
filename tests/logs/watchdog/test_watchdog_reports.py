"""What torch reports by itself about ranks that disagree or did not come, and waits that no watchdog watches."""

from __future__ import annotations

import pytest

from logs.watchdog.watchdog_lines import DEFAULT, STAMP, signals, waits

DESYNC = [
    "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
    "\t   - [0, 2] joined but didn't finish collective #6 (count from 1)",
    "\t     [1, 3] finished collective #5, but didn't join collective #6 (count from 1)",
]


def test_the_desync_report_names_who_did_not_join_and_not_who_waits():
    (found,) = signals(DESYNC, "log.desync_report")
    facts = {k: found.facts[k] for k in ("seq", "last_finished", "never_joined", "waiting_ranks")}
    assert (found.scope.ranks, facts) == (
        [1, 3], {"seq": 6, "last_finished": 5, "never_joined": False, "waiting_ranks": [0, 2]}
    )  # fmt: skip


def test_ranks_that_only_joined_and_wait_are_no_culprits():
    assert signals(DESYNC[:2], "log.desync_report") == []


def test_ranks_that_never_joined_anything_are_named():
    line = (
        "\t - To our best knowledge, ranks [4, 5] are the lagging ranks that caused this timeout. They never joined "
        "any collectives"
    )
    (found,) = signals(line, "log.desync_report")
    assert (found.scope.ranks, found.facts["never_joined"]) == ([4, 5], True)


def test_the_reports_words_stand_beside_the_time_out():
    found = signals([*DESYNC, *waits(0)], "log.watchdog_timeout")
    assert found[0].facts["desync"] == [
        "[0, 2] joined but didn't finish collective #6",
        "[1, 3] finished collective #5, but didn't join collective #6",
    ]


def fingerprints(wording: str, first: str, second: str, aspects: str = "") -> str:
    return (
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running {wording}: "
        f"CollectiveFingerPrint({first}), but Rank 1 is running {wording}: CollectiveFingerPrint({second}).{aspects}"
    )


@pytest.mark.parametrize(
    ("text", "same_operation", "same_seq", "aspects"),
    [
        (fingerprints("collective", "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[8]",
                      "SequenceNumber=7, OpType=BARRIER"), False, True, []),
        (fingerprints("inconsistent collective", "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[8]",
                      "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[9]"), True, True, []),
        (fingerprints("collective", "SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float, "
                      "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda)",
                      "SequenceNumber=8, OpType=ALLREDUCE, TensorShape=[8], TensorDtypes=Float",
                      "Collectives differ in the following aspects: \t Sequence number: 7vs 8"),
         True, False, ["Sequence number"]),
    ],
)  # fmt: skip
def test_a_fingerprint_shows_both_sides(text, same_operation, same_seq, aspects):
    (found,) = signals(text, "log.collectives_differ")
    assert (found.scope.ranks, found.facts["seq"]) == ([0, 1], 7)
    told = (found.facts["same_operation"], found.facts["same_seq"], found.facts["aspects"])
    assert told == (same_operation, same_seq, aspects)


def test_a_fingerprint_of_one_side_names_that_rank():
    text = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running inconsistent collective: "
        "CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[20, 20], TensorDtypes=Float, TensorDeviceTypes=cpu)"
    )
    (found,) = signals(text, "log.collectives_differ")
    assert (found.scope.ranks, found.facts["seq"], found.facts["same_operation"]) == ([3], None, False)


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("[E ProcessGroupGloo.cpp:2791] Rank 3 failed to pass monitoredBarrier in 30000 ms", [3]),
        ("RuntimeError: [Rank 0]: Ranks 1, 2, 7 failed to pass monitoredBarrier in 30000 ms", [1, 2, 7]),
    ],
)
def test_a_monitored_barrier_names_the_late_ranks(line, ranks):
    (found,) = signals(line, "log.barrier_late")
    assert (found.scope.ranks, found.facts["timeout_ms"]) == (ranks, 30000)


def test_the_flight_recorder_tool_names_missing_and_differing_ranks():
    lines = [
        "Not all ranks joining collective, sequence number: 14",
        "missing ranks: {1, 3}",
        "Culprit rank 5; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: all_reduce does not match",
        "Culprit rank 6; Error type: COLLECTIVE_STATE_MISMATCH, Expected state: scheduled does not match",
    ]
    found = signals(lines, "log.desync_report")
    assert [(s.scope.ranks, s.facts.get("seq"), s.facts.get("error")) for s in found] == [
        ([1, 3], 14, None),
        ([5], None, "COLLECTIVE_TYPE_MISMATCH"),
    ]


def test_missing_ranks_of_another_tool_are_not_read():
    assert signals("missing ranks: {1, 3}", "log.desync_report") == []


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued "
         "collectives.", ("stuck_s", 480)),
        ("NCCL monitoring thread detects no heartbeat and will finally kill the process!", ("n_lines", 1)),
        ("Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=3",
         ("n_pending", 3)),
        ("First PG on this rank that detected no heartbeat of its watchdog.", ("n_lines", 1)),
    ],
)  # fmt: skip
def test_a_watchdog_that_is_blocked_itself_is_no_time_out(text, fact):
    line = f"[rank2]:[{STAMP}] [{DEFAULT} Rank 2] {text}"
    (found,) = signals(line, "log.heartbeat_lost")
    assert (found.scope.ranks, found.facts[fact[0]]) == ([2], fact[1])
    assert signals(line, "log.watchdog_timeout") == []


@pytest.mark.parametrize("operation", ["recv", "send"])
def test_a_gloo_operation_that_timed_out_is_read(operation):
    line = (
        f"[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting "
        f"1800000ms for {operation} operation to complete"
    )
    (found,) = signals(line, "log.gloo_timeout")
    assert found.scope.ranks == [1]
    assert (found.facts["timeout_ms"], found.facts["operation"]) == (1800000, operation)


@pytest.mark.parametrize(
    ("wording", "root"),
    [
        ("communicator and retreiving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') "
         "got error: Socket Timeout", 0),
        ("communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') "
         "got error: Socket Timeout", 0),
        ("communicators and retrieving ncclUniqueIds from roots via TCPStore by key '0'", None),
    ],
)  # fmt: skip
def test_ranks_that_set_up_a_communicator_in_vain_are_named(wording, root):
    lines = [f"[rank{r}]: RuntimeError: [{r}] is setting up NCCL {wording}" for r in (1, 2, 3)]
    (found,) = signals(lines, "log.init_wait")
    assert (found.scope.ranks, found.facts["n_waiting"], found.facts.get("missing_group_rank")) == ([1, 2, 3], 3, root)


def test_the_store_tells_how_many_clients_came():
    line = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 24/32 clients joined."
    (found,) = signals(line, "log.init_wait")
    facts = {k: found.facts[k] for k in ("joined", "expected", "n_missing", "timeout_s")}
    assert facts == {"joined": 24, "expected": 32, "n_missing": 8, "timeout_s": 601}


def test_a_store_that_is_gone_names_who_noticed_and_is_no_trouble_by_itself():
    line = (
        f'[rank3]:[{STAMP}] [{DEFAULT} Rank 3] Failed to check the "should dump" flag on TCPStore, (maybe TCPStore '
        "server has shut down too early), with error: Connection reset by peer"
    )
    (found,) = signals(line, "log.store_gone")
    assert (found.scope.ranks, found.facts["error"]) == ([3], "Connection reset by peer")


@pytest.mark.parametrize(
    "line",
    [
        "[rank1]:[W1130 14:27:18.1 socket.cpp:460] [c10d] waitForInput: poll for socket SocketImpl(fd=7, addr=[a]:1, "
        "remote=[b]:2) returned 0, likely a timeout",
        "[rank1]: torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0/0",
    ],
)
def test_a_wait_for_the_store_that_expired_is_read(line):
    (found,) = signals(line, "log.store_timeout")
    assert found.scope.ranks == [1]


def test_what_a_person_writes_about_a_time_out_is_no_report():
    assert signals("I think ranks [4, 5] are the lagging ranks that caused this timeout, but we never saw why") == []
