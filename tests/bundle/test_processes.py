import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextvars import copy_context
from pathlib import Path

import pytest

from bundle.proc_tree import OWN_PID, PYTHON, ProcTree, torchrun_env
from torchtriage.bundle.job_words import BY_NAME
from torchtriage.bundle.processes import (
    JobProcess,
    NoJobError,
    SeveralJobsError,
    choose,
    find_processes,
    jobs_of,
    named,
)

SPAWN = [PYTHON, "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6, pipe_handle=8)"]
TRACKER = [PYTHON, "-c", "from multiprocessing.resource_tracker import main;main(5)"]
KERNEL_THREAD = 0x00200000
TORCHRUN = [PYTHON, "/usr/local/bin/torchrun", "--nproc-per-node", "4", "train.py"]


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def found(tree: ProcTree) -> list[JobProcess]:
    return find_processes(tree.root, own_pid=OWN_PID)


def roles(tree: ProcTree) -> dict[int, tuple[str, int | None]]:
    return {p.pid: (p.role, p.rank) for p in found(tree)}


def test_ranks_of_torchrun_are_found_with_their_workers_helpers_and_launcher(tree: ProcTree) -> None:
    agent = tree.add("pt_elastic", command=TORCHRUN)
    ranks = [tree.add(ppid=agent, env=torchrun_env(rank)) for rank in range(4)]
    worker = tree.add("pt_data_worker", ppid=ranks[2], env=torchrun_env(2))
    old_worker = tree.add("python3", ppid=ranks[1], env=torchrun_env(1))
    tracker = tree.add("python3", ppid=ranks[2], command=TRACKER, env=torchrun_env(2))
    smi = tree.add("nvidia-smi", ppid=tracker, command=["nvidia-smi"], env=torchrun_env(2))
    assert roles(tree) == {
        agent: ("launcher", None),
        **{pid: ("rank", rank) for rank, pid in enumerate(ranks)},
        worker: ("dataloader worker", 2),
        old_worker: ("dataloader worker", 1),
        tracker: ("helper", 2),
        smi: ("helper", 2),
    }
    child = next(p for p in found(tree) if p.pid == smi)
    assert (child.rank_pid, child.job, child.world_size) == (ranks[2], "127.0.0.1:29500", 4)


@pytest.mark.parametrize(
    ("environment", "command", "rank"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, "mpirun", 3),
        ({"PMI_RANK": "5", "MPI_LOCALRANKID": "1", "PMI_SIZE": "8"}, "mpiexec.hydra", 5),
        (
            {"SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
            "slurmstepd: [7.0]",
            6,
        ),
        ({"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "deepspeed", 2),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}, "bash", 1),
        ({"LOCAL_RANK": "1", "NODE_RANK": "2", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}, "bash", 9),
    ],
)
def test_other_launchers_tell_the_rank_in_their_own_variables(
    tree: ProcTree, environment: dict[str, str], command: str, rank: int
) -> None:
    parent = tree.add("launcher", command=[command])
    pid = tree.add("python3", ppid=parent, env=environment)
    assert roles(tree)[pid] == ("rank", rank)


def test_a_batch_script_and_what_it_runs_is_no_rank(tree: ProcTree) -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}
    script = tree.add("bash", command=["/bin/bash", "job.sh"], env=batch)
    tree.add("python3", ppid=script, command=[PYTHON, "monitor.py"], env=batch)
    tree.add("srun", ppid=script, command=["srun", "python", "train.py"], env=batch)
    tree.add("jupyter", command=[PYTHON, "/bin/jupyter"], env={**batch, "SLURM_STEP_ID": "4294967290"})
    assert found(tree) == []


def test_agents_that_srun_started_are_launchers_and_monitors_beside_them_nothing(tree: ProcTree) -> None:
    step = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    shell = tree.add("bash", command=["bash", "-c", "..."], env=step)
    tree.add("python3", ppid=shell, command=[PYTHON, "gpu_monitor.py"], env=step)
    agent = tree.add("pt_elastic", ppid=shell, command=TORCHRUN, env=step)
    rank = tree.add(ppid=agent, env={**step, **torchrun_env(1)})
    assert roles(tree) == {agent: ("launcher", None), rank: ("rank", 1)}
    assert found(tree)[1].job == "127.0.0.1:29500 slurm 7"


def test_a_rank_below_shells_and_wrappers_is_the_python_process(tree: ProcTree) -> None:
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    mpirun = tree.add("mpirun", command=["mpirun", "-n", "2", "run.sh"])
    shell = tree.add("bash", ppid=mpirun, command=["bash", "run.sh"], env=env)
    timeout = tree.add("timeout", ppid=shell, command=["timeout", "1h", "python3", "train.py"], env=env)
    tree.add("tee", ppid=shell, command=["tee", "log"], env=env)
    rank = tree.add("python3", ppid=timeout, env=env)
    assert roles(tree) == {mpirun: ("launcher", None), rank: ("rank", 0)}


def test_a_python_program_that_only_runs_the_trainer_is_not_the_rank(tree: ProcTree) -> None:
    env = torchrun_env(0)
    outer = tree.add("python3", command=[PYTHON, "sweep.py"], env=env)
    inner = tree.add("python3", ppid=outer, command=[PYTHON, "train.py"], env=env, torch=True)
    assert roles(tree) == {outer: ("launcher", None), inner: ("rank", 0)}


def test_in_a_pod_with_rank_set_only_what_has_torch_is_the_rank(tree: ProcTree) -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    tree.add("bash", command=["bash"], env=env)
    notebook = tree.add("python3", command=[PYTHON, "/bin/jupyter-lab"], env=env)
    rank = tree.add("python3", env=env, torch=True)
    assert roles(tree) == {rank: ("rank", 1), notebook: ("helper", 1)}
    assert next(p.rank_pid for p in found(tree) if p.pid == notebook) == rank


def test_an_agent_in_a_pod_is_no_rank_though_the_pod_gave_it_one(tree: ProcTree) -> None:
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    shell = tree.add("bash", command=["bash", "start.sh"], env=pod)
    agent = tree.add("pt_elastic", ppid=shell, command=TORCHRUN, env=pod)
    rank = tree.add(ppid=agent, env={**pod, **torchrun_env(1), "RANK": "5"})
    assert roles(tree) == {agent: ("launcher", None), rank: ("rank", 5)}


def test_the_first_process_of_lightning_is_rank_0_though_it_has_no_variables(tree: ProcTree) -> None:
    first = tree.add()
    others = [
        tree.add(ppid=first, env={"LOCAL_RANK": str(n), "NODE_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "n0"})
        for n in (1, 2, 3)
    ]
    worker = tree.add("pt_data_worker", ppid=first)
    expected = {pid: ("rank", 4 + n) for n, pid in enumerate([first, *others])}
    assert roles(tree) == {**expected, worker: ("dataloader worker", 4)}


def test_children_of_a_plain_spawn_are_ranks_without_a_number(tree: ProcTree) -> None:
    parent = tree.add("python3")
    ranks = [tree.add(ppid=parent, command=SPAWN, env={"MASTER_ADDR": "localhost"}) for _ in range(3)]
    tracker = tree.add("python3", ppid=parent, command=TRACKER)
    worker = tree.add("pt_data_worker", ppid=ranks[0], command=SPAWN)
    assert roles(tree) == {
        parent: ("launcher", None),
        **dict.fromkeys(ranks, ("rank", None)),
        worker: ("dataloader worker", None),
    }
    assert set(jobs_of(found(tree))) == {f"localhost started by {parent} (train.py)"}
    assert tracker not in roles(tree)


def test_what_a_spawned_rank_starts_anew_tells_which_rank_it_is(tree: ProcTree) -> None:
    parent = tree.add("python3")
    ranks = [tree.add(ppid=parent, command=SPAWN) for _ in range(2)]
    workers = [tree.add("pt_data_worker", ppid=pid, command=SPAWN, env=torchrun_env(n)) for n, pid in enumerate(ranks)]
    assert roles(tree) == {
        parent: ("launcher", None),
        **{pid: ("rank", n) for n, pid in enumerate(ranks)},
        **{pid: ("dataloader worker", n) for n, pid in enumerate(workers)},
    }


def test_spawned_workers_without_torch_or_of_a_dataloader_are_no_ranks(tree: ProcTree) -> None:
    pool = tree.add("python3", command=[PYTHON, "serve.py"])
    for _ in range(3):
        tree.add("python3", ppid=pool, command=SPAWN)
    trainer = tree.add("python3")
    for _ in range(3):
        tree.add("pt_data_worker", ppid=trainer, command=SPAWN)
    assert found(tree) == []


def test_forked_children_are_ranks_only_if_they_are_connected_with_each_other(tree: ProcTree) -> None:
    trainer = tree.add()
    for _ in range(4):
        tree.add(ppid=trainer)
    parent = tree.add(command=[PYTHON, "forking.py"])
    ranks = [tree.add(ppid=parent, command=[PYTHON, "forking.py"]) for _ in range(3)]
    tree.connect(ranks[0], ranks[1], 40000)
    tree.connect(ranks[2], ranks[0], 40010)
    assert roles(tree) == {parent: ("launcher", None), **dict.fromkeys(ranks, ("rank", None))}


def test_children_of_a_fork_server_are_ranks_if_they_are_connected(tree: ProcTree) -> None:
    server = [PYTHON, "-c", "from multiprocessing.forkserver import main; main(3, 5)"]
    trainer = tree.add("python3")
    parent = tree.add("python3", ppid=trainer, command=server)
    ranks = [tree.add("python3", ppid=parent, command=server, torch=True) for _ in range(2)]
    tree.connect(*ranks, 40000)
    assert {p.pid: p.job for p in found(tree) if p.role == "rank"} == dict.fromkeys(
        ranks, f"started by {trainer} (train.py)"
    )


def test_a_fork_server_that_a_rank_starts_tells_which_rank_it_is(tree: ProcTree) -> None:
    server = [PYTHON, "-c", "from multiprocessing.forkserver import main; main(3, 5)"]
    parent = tree.add("python3", ppid=tree.add("python3"), command=server)
    ranks = [tree.add("python3", ppid=parent, command=server, torch=True) for _ in range(2)]
    nested = [PYTHON, "-c", "from multiprocessing.forkserver import main; main(9, 11)"]
    own = [tree.add("python3", ppid=pid, command=nested, env=torchrun_env(n)) for n, pid in enumerate(ranks)]
    worker = tree.add("pt_data_worker", ppid=own[1], command=nested, env=torchrun_env(1))
    assert roles(tree) == {
        parent: ("launcher", None),
        **{pid: ("rank", n) for n, pid in enumerate(ranks)},
        **{pid: ("helper", n) for n, pid in enumerate(own)},
        worker: ("dataloader worker", 1),
    }


def test_spawned_ranks_of_a_node_inherit_the_rank_of_the_node_and_are_told_apart(tree: ProcTree) -> None:
    pod = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "1"}
    parent = tree.add(env=pod)
    ranks = [tree.add(ppid=parent, command=SPAWN, env=pod) for _ in range(2)]
    tree.connect(*ranks, 40000)
    assert roles(tree) == {parent: ("launcher", None), **dict.fromkeys(ranks, ("rank", None))}


def test_ray_workers_whose_title_covers_their_environment_are_found_by_torch(tree: ProcTree) -> None:
    raylet = tree.add("raylet", command=["/ray/raylet"])
    tree.add("ray::IDLE", ppid=raylet, command=["ray::IDLE"], env=b"\0" * 900, torch=True)
    busy = [
        tree.add("ray::TrainWorke", ppid=raylet, command=["ray::TrainWorker.run"], env=b"\0" * 900, torch=True)
        for _ in range(2)
    ]
    tree.connect(*busy, 40000)
    assert {pid: role for pid, (role, _) in roles(tree).items()} == {raylet: "launcher", **dict.fromkeys(busy, "rank")}


def test_two_jobs_are_kept_apart_and_one_must_be_chosen(tree: ProcTree) -> None:
    first = [tree.add(env=torchrun_env(r, 2)) for r in range(2)]
    second = [tree.add(env=torchrun_env(r, 2, MASTER_PORT="29501", TORCHELASTIC_RUN_ID="blue")) for r in range(2)]
    processes = found(tree)
    assert list(jobs_of(processes)) == ["127.0.0.1:29500", "127.0.0.1:29501 blue"]
    (tree.root / "uptime").write_text("7400.00 1.00\n", encoding="ascii")
    (tree.root / str(second[0]) / "cwd").symlink_to("/data/blue run")
    with pytest.raises(SeveralJobsError) as told:
        choose(processes, proc=tree.root)
    pids = ", ".join(map(str, second))
    assert (
        f"\n  --job '127.0.0.1:29501 blue'  # 2 ranks, train.py in /data/blue run, began 2 h ago, pid {pids}, user id "
    ) in str(told.value)
    assert "\n  --job 127.0.0.1:29500  # 2 ranks, train.py, began 2 h ago" in str(told.value)
    assert [p.pid for p in choose(processes, job="blue")] == second
    assert [p.pid for p in choose(processes, job="127.0.0.1:29500")] == first
    with pytest.raises(NoJobError, match="is no job on this node"):
        choose(processes, job="green")
    with pytest.raises(SeveralJobsError, match="fits several"):
        choose(processes, job="127.0.0.1")


def test_over_mcp_the_choice_is_written_as_a_parameter(tree: ProcTree) -> None:
    for port in ("29500", "29501"):
        tree.add(env=torchrun_env(0, 2, MASTER_PORT=port, TORCHELASTIC_RUN_ID='a "b"'))

    def told() -> str:
        BY_NAME.set(True)
        with pytest.raises(SeveralJobsError) as error:
            choose(found(tree))
        return str(error.value)

    text = copy_context().run(told)
    assert 'job: "127.0.0.1:29501 a \\"b\\""  # 1 of 2 ranks' in text
    assert "pids: [PID]" in text
    assert "--" not in text


def test_pids_of_two_jobs_are_refused_with_both_named(tree: ProcTree) -> None:
    first = [tree.add(env=torchrun_env(r, 2)) for r in range(2)]
    second = [tree.add(env=torchrun_env(r, 2, MASTER_PORT="29501")) for r in range(2)]
    with pytest.raises(SeveralJobsError, match="different jobs") as told:
        choose(found(tree), pids=[first[0], second[1]])
    lines = str(told.value).splitlines()[1:]
    assert [line.split(";")[0] for line in lines] == [
        f"  --job 127.0.0.1:29500  # pid {first[0]}",
        f"  --job 127.0.0.1:29501  # pid {second[1]}",
    ]
    assert [p.pid for p in named(found(tree), [first[0], second[1]])] == [first[0], second[1]]


def test_processes_that_no_job_claims_may_be_named_together(tree: ProcTree) -> None:
    rank = tree.add(env=torchrun_env(0, 2))
    other, third = tree.add("python3"), tree.add("python3")
    alone = [tree.add(env={"RANK": str(n), "WORLD_SIZE": "2"}, ppid=tree.add("bash", command=["bash"])) for n in (0, 1)]
    twin = tree.add(env={"RANK": "0", "WORLD_SIZE": "2"}, ppid=tree.add("bash", command=["bash"]))

    def chosen(*pids: int) -> list[int]:
        return [p.pid for p in choose(find_processes(tree.root, own_pid=OWN_PID, pids=pids), pids=pids)]

    assert sorted(chosen(rank, other, third)) == [rank, other, third]
    assert sorted(chosen(*alone)) == alone
    with pytest.raises(SeveralJobsError, match="different jobs"):
        chosen(alone[0], twin)


def test_containers_with_one_address_each_are_two_jobs(tree: ProcTree) -> None:
    for namespace in ("net:[1]", "net:[2]"):
        for rank in range(2):
            tree.add(env=torchrun_env(rank, 2), namespace=namespace)
    assert {key: len(members) for key, members in jobs_of(found(tree)).items()} == {
        "127.0.0.1:29500 net:[1]": 2,
        "127.0.0.1:29500 net:[2]": 2,
    }


def test_pids_choose_a_rank_with_its_children_a_launcher_its_job(tree: ProcTree) -> None:
    agent = tree.add("pt_elastic", command=TORCHRUN)
    ranks = [tree.add(ppid=agent, env=torchrun_env(rank, 2)) for rank in range(2)]
    worker = tree.add("pt_data_worker", ppid=ranks[1], env=torchrun_env(1, 2))
    processes = found(tree)
    assert [p.pid for p in choose(processes, pids=[ranks[1]])] == [ranks[1], worker]
    assert len(choose(processes, pids=[agent])) == 4
    with pytest.raises(NoJobError, match="no process 4242 on this node"):
        choose(processes, pids=[4242])


def test_a_process_that_somebody_names_counts_as_a_rank(tree: ProcTree) -> None:
    single = tree.add("python3")
    worker = tree.add("pt_data_worker", ppid=single)
    processes = find_processes(tree.root, own_pid=OWN_PID, pids=[single, OWN_PID])
    assert [(p.pid, p.role, p.rank) for p in choose(processes, pids=[single])] == [
        (single, "rank", None),
        (worker, "dataloader worker", None),
    ]


def test_kernel_threads_and_zombies_that_are_named_are_refused_by_what_they_are(tree: ProcTree) -> None:
    thread = tree.add("kworker/0:1", ppid=2, command=[], flags=KERNEL_THREAD)
    agent = tree.add("pt_elastic", command=TORCHRUN)
    rank = tree.add(ppid=agent, env=torchrun_env(0))
    dead = tree.add(ppid=agent, command=[], state="Z", n_threads=1)

    def chosen(*pids: int) -> list[int]:
        processes = find_processes(tree.root, own_pid=OWN_PID, pids=pids)
        return [p.pid for p in choose(processes, pids=pids, proc=tree.root)]

    with pytest.raises(NoJobError, match=f"^process {thread} is a kernel thread, which belongs to no job. Name"):
        chosen(thread)
    with pytest.raises(NoJobError, match=f"^process {dead} is a zombie: it has ended and process {agent}"):
        chosen(rank, dead)
    assert chosen(rank) == [rank]
    assert roles(tree)[dead] == ("rank", None)  # of a job that is looked at whole it is a part


def test_a_process_whose_main_thread_alone_has_ended_is_no_zombie(tree: ProcTree) -> None:
    pid = tree.add("python3", command=[], state="Z", n_threads=4)
    processes = find_processes(tree.root, own_pid=OWN_PID, pids=[pid])
    assert [p.pid for p in choose(processes, pids=[pid], proc=tree.root)] == [pid]


def test_in_a_container_what_process_2_started_is_a_process_like_others(tree: ProcTree) -> None:
    tree.add("bash", pid=2, command=["bash"])
    rank = tree.add(ppid=2, env=torchrun_env(0))
    assert roles(tree) == {rank: ("rank", 0)}


@pytest.mark.parametrize("told", [b"99999999999", b"-1", b"\xff\xfe", b"first", b""])
def test_a_rank_that_is_no_number_is_listed_without_one(tree: ProcTree, told: bytes) -> None:
    rest = b"\0WORLD_SIZE=2\0MASTER_ADDR=127.0.0.1\0MASTER_PORT=29500\0"
    bare = tree.add(env=b"RANK=" + told + rest)
    local = tree.add(env=b"RANK=" + told + rest + b"LOCAL_RANK=1\0GROUP_RANK=0\0")
    worker = tree.add("pt_data_worker", ppid=bare, env=b"RANK=" + told + rest)
    good = tree.add(env=b"RANK=0" + rest)
    listed = found(tree)
    assert {p.pid: (p.role, p.rank) for p in listed} == {
        bare: ("rank", None), local: ("rank", None), worker: ("dataloader worker", None), good: ("rank", 0),
    }  # fmt: skip
    assert {p.job for p in listed} == {"127.0.0.1:29500"}


def test_a_variable_of_somebody_elses_that_is_called_rank_makes_no_rank(tree: ProcTree) -> None:
    tree.add(env={"RANK": "captain"})
    wrapper = tree.add(command=[PYTHON, "start.py"], env={"RANK": "", "MASTER_ADDR": "127.0.0.1"})
    rank = tree.add(ppid=wrapper, env=torchrun_env(0))
    assert roles(tree) == {wrapper: ("launcher", None), rank: ("rank", 0)}


def test_an_empty_node_says_what_to_do(tree: ProcTree) -> None:
    with pytest.raises(NoJobError, match="--pid"):
        choose(found(tree))


def test_own_process_its_parents_and_its_helpers_are_never_listed(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    pod = torchrun_env(0, 1)
    shell = tree.add("python3", command=[PYTHON, "shell.py"], env=pod)
    own = tree.add("python3", ppid=shell, command=[PYTHON, "-m", "torchtriage", "collect"], env=pod)
    tree.add("py-spy", ppid=own, command=["py-spy", "dump"], env=pod)
    tree.add("python3", ppid=own, command=[PYTHON, "-I", "-S", "/x/torchtriage/artefacts/worker.py"], env=pod)
    run = tree.add("pt_elastic", ppid=own, command=TORCHRUN, env=pod)
    rank = tree.add(ppid=run, env=torchrun_env(0, 1, MASTER_PORT="1"))
    assert {p.pid: p.role for p in find_processes(tree.root, own_pid=own)} == {run: "launcher", rank: "rank"}


def test_only_allowed_variables_are_shown_and_command_lines_are_masked(tree: ProcTree) -> None:
    secrets = {"WANDB_API_KEY": "0123456789abcdef0123", "AWS_SECRET_ACCESS_KEY": "x" * 40, "HOME": "/home/me"}
    command = [PYTHON, "train.py", "--api-key", "Zq81xkUe93bcd", "--lr", "0.1", "--hub=https://me:pw12345@host/x"]
    tree.add(env={**torchrun_env(0), **secrets, "NCCL_DEBUG": "INFO\x1b[31m", "NCCL_X Y": "1"}, command=command)
    (process,) = found(tree)
    assert not set(secrets) & set(process.environment)
    assert "NCCL_X Y" not in process.environment
    assert process.environment["NCCL_DEBUG"] == "INFO"
    shown = " ".join(process.command)
    assert "Zq81xkUe93bcd" not in shown
    assert "pw12345" not in shown
    assert process.command[4:6] == ("--lr", "0.1")


def test_a_secret_argument_is_masked_to_its_end_though_it_holds_blanks_and_line_ends(tree: ProcTree) -> None:
    command = [PYTHON, "train.py", "--password", "ab cd\nefgh", "--api-key=abcd efgh", "--name", "a run of mine"]
    tree.add(env=torchrun_env(0), command=command)
    (process,) = found(tree)
    assert process.command[2:] == ("--password", "[masked]", "--api-key=[masked]", "--name", "a run of mine")


def test_names_with_blanks_and_parentheses_are_read(tree: ProcTree) -> None:
    pid = tree.add("a) S 1 (b c", env=torchrun_env(0))
    assert [(p.pid, p.ppid, p.start_ticks) for p in found(tree)] == [(pid, 1, pid * 10)]


def test_zombies_vanished_and_garbled_processes_are_no_errors(tree: ProcTree) -> None:
    agent = tree.add("pt_elastic", command=TORCHRUN)
    rank = tree.add(ppid=agent, env=torchrun_env(0))
    dead = tree.add(ppid=agent, command=[], state="Z")
    tree.add("python3", ppid=agent, command=[], state="Z")
    (tree.root / "1500").mkdir()
    (tree.root / "1501").mkdir()
    (tree.root / "1501" / "stat").write_bytes(b"\xff\x00 ) (")
    noise = random.Random(7).randbytes(3000)
    tree.add("python3", env=b"RANK=\xff\xfe\0=RANK\0RANK\0LOCAL_RANK=99999999999\0" + noise)
    tree.add("python3", env=b"RANK=1" + b"x" * 2_000_000)
    tree.add("loop", pid=1600, ppid=1601, env=torchrun_env(9, MASTER_PORT="2"))
    tree.add("loop", pid=1601, ppid=1600, env=torchrun_env(9, MASTER_PORT="2"))
    listed = roles(tree)
    assert listed[rank] == ("rank", 0)
    assert listed[dead] == ("rank", None)
    assert listed[agent] == ("launcher", None)


def test_the_user_of_a_process_is_who_started_it_and_not_the_owner_of_its_folder(tree: ProcTree) -> None:
    """The folder of a process that made itself undumpable, or of a set-user-ID program, is root's."""
    pid = tree.add(env=torchrun_env(0))
    (tree.root / str(pid) / "status").write_text("Name:\tx\nUid:\t1234\t0\t0\t0\nGid:\t1\t0\t0\t0\n", encoding="utf-8")
    assert [p.uid for p in found(tree)] == [1234]


def test_unreadable_ranks_are_listed_without_environment(tree: ProcTree, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def guarded(path: str, flags: int, *more: int) -> int:
        if str(path).endswith("/environ"):
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *more)

    monkeypatch.setattr("torchtriage.bundle.proc_files.os.open", guarded)
    _unreadable_ranks(tree)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc of this machine")
def test_a_real_rank_is_found_with_its_child_below_the_process_that_looks() -> None:
    code = "import subprocess, sys; sys.stdin.readline(); subprocess.run(['sleep', '60'])"
    environment = {**os.environ, **torchrun_env(3, MASTER_PORT="1", TORCHELASTIC_RUN_ID="own")}
    rank = subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE)
    try:
        assert rank.stdin is not None
        rank.stdin.write(b"\n")
        rank.stdin.flush()
        deadline, pause = time.monotonic() + 20, threading.Event()
        mine: list[JobProcess] = []
        while len(mine) < 2 and time.monotonic() < deadline:
            mine = [p for p in find_processes() if p.job == "127.0.0.1:1 own"]
            pause.wait(0.01)
        assert [(p.role, p.rank, p.rank_pid) for p in mine] == [("rank", 3, None), ("helper", 3, rank.pid)]
        assert mine[0].command[0] == sys.executable
        for child in mine[1:]:
            os.kill(child.pid, signal.SIGKILL)
    finally:
        rank.kill()
        rank.communicate()


def _unreadable_ranks(tree: ProcTree) -> None:
    agent = tree.add("pt_elastic", command=TORCHRUN)
    rank = tree.add(ppid=agent, env=torchrun_env(0), command=[PYTHON, "train.py", "--local-rank=3"])
    tree.add("python3", command=[PYTHON, "editor.py"])
    for folder in tree.root.iterdir():
        (folder / "environ").chmod(0)
    listed = {p.pid: (p.role, p.local_rank, dict(p.environment), p.job) for p in found(tree)}
    assert listed[rank] == ("rank", 3, {}, f"torchrun {agent}")
    assert set(listed) == {agent, rank}


def test_many_processes_are_looked_through_quickly(tree: ProcTree) -> None:
    agent = tree.add("pt_elastic", command=TORCHRUN)
    ranks = [tree.add(ppid=agent, env=torchrun_env(rank, 16)) for rank in range(16)]
    for rank, pid in enumerate(ranks):
        for _ in range(12):
            tree.add("pt_data_worker", ppid=pid, env=torchrun_env(rank, 16, NCCL_DEBUG="INFO"))
    for number in range(300):
        tree.add("sh", command=["sh"], env={f"V{n}": str(number) * 9 for n in range(30)})
    took = []
    for _ in range(3):
        start = time.process_time()
        processes = found(tree)
        took.append(time.process_time() - start)
    assert len(processes) == 1 + 16 * 13
    assert min(took) < 0.3  # several times what it takes, as machines differ
