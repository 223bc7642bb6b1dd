"""What a stack says its process is doing."""

from __future__ import annotations

import pytest

from stacks.stack_inputs import BARRIER, LOADER, START, SYNC, USER, process, read_text
from torchtriage.stacks.classify import classify

CONDITION = ["Condition.wait (threading.py:355)"]
POLL = ["poll (libc.so.6)", "_PollLikeSelector.select (selectors.py:415)"]
ENGINE = [
    "_engine_run_backward (torch/autograd/graph.py:841)",
    "backward (torch/autograd/__init__.py:353)",
    "Tensor.backward (torch/_tensor.py:648)",
]
COND_WAIT = ["pthread_cond_wait (libc.so.6)", "std::condition_variable::wait (libstdc++.so.6.0.33)"]
ENGINE_NATIVE = [*COND_WAIT, "c10::ivalue::Future::waitAndThrow (libtorch_python.so)",
                 "torch::autograd::python::PythonEngine::execute (libtorch_python.so)",
                 "THPEngine_run_backward (libtorch_python.so)"]  # fmt: skip
AUTOGRAD = ["torch::autograd::Engine::thread_main (libtorch_cpu.so)"]
AUTOGRAD_IDLE = [*COND_WAIT, "torch::autograd::ReadyQueue::pop (libtorch_cpu.so)", *AUTOGRAD]

CASES: dict[str, tuple[list[str], str]] = {
    "stream synchronize": ([*SYNC, *USER, *START], "waiting_on_gpu"),
    "unnamed driver frames under a synchronize": (
        ["0x7f0 ([vdso])", "clock_gettime (libc.so.6)", "0x7f1 (libcuda.so.580)", *SYNC, *USER],
        "waiting_on_gpu",
    ),
    "memory copy of an older item()": (
        ["cudaMemcpyAsync (libcudart.so.11.0)", "at::native::_local_scalar_dense_cuda (libtorch_cuda.so)", *USER],
        "waiting_on_gpu",
    ),
    "nonzero": (
        ["cudaStreamSynchronize (libcudart.so.12)", "at::native::nonzero_out_cuda (libtorch_cuda.so)", *USER],
        "waiting_on_gpu",
    ),
    "torch.cuda.synchronize": (["synchronize (torch/cuda/__init__.py:1162)", *USER], "waiting_on_gpu"),
    "Event.synchronize": (["Event.synchronize (torch/cuda/streams.py:231)", *USER], "waiting_on_gpu"),
    "full launch queue": (
        ["0x7f (libcuda.so.1)", "cuLaunchKernelEx (libcuda.so.1)", "cudaLaunchKernel (libcudart.so.12)", *USER],
        "waiting_on_gpu",
    ),
    "work.wait in C++": (
        ["__nanosleep (libc.so.6)", "c10d::ProcessGroupNCCL::WorkNCCL::synchronizeInternal (libtorch_cuda.so)", *USER],
        "waiting_on_gpu",
    ),
    "hip": (["hipDeviceSynchronize (libamdhip64.so.6)", *USER], "waiting_on_gpu"),
    "python all_reduce": (
        ["all_reduce (torch/distributed/distributed_c10d.py:2810)", *BARRIER[1:], *USER],
        "in_collective",
    ),
    "gloo, waited for by the calling thread": (
        [
            "0x7f01 (libc.so.6)",
            *COND_WAIT,
            "c10d::Work::wait (libtorch_cpu.so)",
            "pybind11::cpp_function::dispatcher (libtorch_python.so)",
            *USER,
        ],
        "in_collective",
    ),
    "gradients over gloo": (
        [
            "0x7f01 (libc.so.6)",
            *COND_WAIT,
            "c10d::Reducer::finalize_backward (libtorch_cpu.so)",
            "torch::autograd::GraphTask::exec_post_processing (libtorch_cpu.so)",
            *AUTOGRAD,
            "torch::autograd::python::PythonEngine::execute (libtorch_python.so)",
            "THPEngine_run_backward (libtorch_python.so)",
            *ENGINE,
            *USER,
        ],
        "in_collective",
    ),
    "gradients over NCCL": (
        [
            "cudaStreamSynchronize (libcudart.so.12)",
            "c10d::Reducer::finalize_backward (libtorch_cpu.so)",
            "THPEngine_run_backward (libtorch_python.so)",
            *ENGINE,
            *USER,
        ],
        "waiting_on_gpu",
    ),
    "gloo": (
        [
            *COND_WAIT,
            "gloo::transport::tcp::UnboundBuffer::waitRecv (libtorch_cpu.so)",
            "gloo::barrier (libtorch_cpu.so)",
            *USER,
        ],
        "in_collective",
    ),
    "nccl init": (
        ["poll (libc.so.6)", "bootstrapAllGather (libnccl.so.2)", "ncclCommInitRankConfig (libnccl.so.2)", *USER],
        "in_collective",
    ),
    "store under init": (
        [
            "recv (libc.so.6)",
            "c10d::TCPStore::get (libtorch_cpu.so)",
            "_store_based_barrier (torch/distributed/distributed_c10d.py:900)",
            "init_process_group (torch/distributed/distributed_c10d.py:1700)",
            *USER,
        ],
        "in_collective",
    ),
    "store on its own": (
        [
            "recv (libc.so.6)",
            "c10d::detail::TCPClient::receiveValue (libtorch_cpu.so)",
            "c10d::TCPStore::get (libtorch_cpu.so)",
            *USER,
        ],
        "network_io",
    ),
    "dataloader": ([*POLL, "wait (multiprocessing/connection.py:1136)", *LOADER, *USER], "data_loading"),
    "dataset in the main process": (
        [
            "read (libc.so.6)",
            "decode (dataset.py:8)",
            "Shards.__getitem__ (dataset.py:30)",
            "_MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:52)",
            "_SingleProcessDataLoaderIter._next_data (torch/utils/data/dataloader.py:788)",
            *USER,
        ],
        "file_io",
    ),
    "dataset that loads with torch.load over the network": (
        [
            "recv_into (socket.py:707)",
            "read (ssl.py:1166)",
            "get (requests/api.py:73)",
            "load (torch/serialization.py:1300)",
            "Shards.__getitem__ (dataset.py:30)",
            "_next_data (torch/utils/data/dataloader.py:788)",
            *USER,
        ],
        "data_loading",
    ),
    "webdataset": ([*POLL, "tar_file_iterator (webdataset/tariterators.py:90)", *USER], "data_loading"),
    "torch.save": (
        [
            "write (libc.so.6)",
            "PyTorchFileWriter::write (libtorch_cpu.so)",
            "_save (torch/serialization.py:1200)",
            "save (torch/serialization.py:944)",
            *USER,
        ],
        "checkpointing",
    ),
    "checkpoint upload": (
        [
            "read (ssl.py:1166)",
            "urlopen (urllib3/connectionpool.py:703)",
            "send (botocore/httpsession.py:464)",
            "save_checkpoint (ckpt.py:12)",
            *USER,
        ],
        "checkpointing",
    ),
    "distributed checkpoint": (
        [
            *CONDITION,
            "Future.result (concurrent/futures/_base.py:451)",
            "write_data (torch/distributed/checkpoint/filesystem.py:700)",
            *USER,
        ],
        "checkpointing",
    ),
    "activation checkpointing is no checkpoint": (
        [*SYNC, "checkpoint (torch/utils/checkpoint.py:489)", *USER],
        "waiting_on_gpu",
    ),
    "dynamo": (
        ["step (torch/_dynamo/symbolic_convert.py:900)", "_compile (torch/_dynamo/convert_frame.py:1000)", *USER],
        "compiling",
    ),
    "autotune": (
        ["_bench (triton/runtime/autotuner.py:130)", "run (triton/runtime/autotuner.py:160)", *USER],
        "compiling",
    ),
    "running compiled code": (
        ["call (/tmp/torchinductor_root/ab/cab.py:77)", "_fn (torch/_dynamo/eval_frame.py:574)", *USER],
        "python_running",
    ),
    "extension lock": (
        ["wait (torch/utils/file_baton.py:52)", "_jit_compile (torch/utils/cpp_extension.py:1700)", *USER],
        "compiling",
    ),
    "native compiler": (["mlir::PassManager::run (libtriton.so)", "make_ttgir (/opt/kern.py:3)", *USER], "compiling"),
    "gc": (["deduce_unreachable (python3.12)", "gc_collect_main (python3.12)", *USER], "garbage_collecting"),
    "lock": ([*CONDITION, "Event.wait (threading.py:655)", *USER], "lock_wait"),
    "native lock": (["0x7f (libc.so.6)", "PyThread_acquire_lock_timed (python3.12)", *USER, *START], "lock_wait"),
    "queue": ([*CONDITION, "Queue.get (queue.py:171)", *USER], "lock_wait"),
    "future": ([*CONDITION, "Future.result (concurrent/futures/_base.py:451)", *USER], "lock_wait"),
    "subprocess": (["Popen._try_wait (subprocess.py:2011)", "Popen.wait (subprocess.py:1264)", *USER], "lock_wait"),
    "sleep": (["clock_nanosleep (libc.so.6)", "time_sleep (python3.12)", *USER, *START], "sleeping"),
    "https": (
        [
            "SSLSocket.read (ssl.py:1166)",
            "HTTPResponse._read_status (http/client.py:279)",
            "urlopen (urllib3/connectionpool.py:703)",
            "get (requests/api.py:73)",
            *USER,
        ],
        "network_io",
    ),
    "retry sleeps in a network library": (
        ["clock_nanosleep (libc.so.6)", "time_sleep (python3.12)", "Retry.sleep (urllib3/util/retry.py:350)", *USER],
        "network_io",
    ),
    "wandb": (
        [*CONDITION, "wait (wandb/sdk/lib/mailbox.py:120)", "log (wandb/sdk/wandb_run.py:400)", *USER],
        "network_io",
    ),
    "object store": (["read (ssl.py:1166)", "get_object (botocore/client.py:500)", *USER], "network_io"),
    "native read": (["__libc_read (libc.so.6)", "_io_FileIO_readall (python3.12)", *USER, *START], "file_io"),
    "parquet": (
        [
            "pread64 (libc.so.6)",
            "arrow::io::ReadableFile::ReadAt (libarrow.so.1500)",
            "read_table (pyarrow/parquet/core.py:1800)",
            *USER,
        ],
        "file_io",
    ),
    "import": (["_path_stat (<frozen importlib._bootstrap_external>:142)", *USER], "file_io"),
    "native work": (["tokenizers::encode (tokenizers.abi3.so)", *USER, *START], "native_running"),
    "python work": ([*USER, *START], "python_running"),
    "native only": (["work (libfoo.so)", "main (train)"], "native_running"),
    "user code that calls back under a lock library": (
        ["on_done (train.py:7)", "Future._invoke_callbacks (concurrent/futures/_base.py:340)", *USER, *START],
        "python_running",
    ),
    "multiprocessing entry frames say nothing": (
        [
            "train (train.py:5)",
            "_wrap (torch/multiprocessing/spawn.py:90)",
            "Process.run (multiprocessing/process.py:108)",
            "Process._bootstrap (multiprocessing/process.py:314)",
            *START,
        ],
        "python_running",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_state_is_read_off_the_frames(name: str) -> None:
    frames, state = CASES[name]
    assert classify(process(frames)).state == state


def test_a_barrier_that_waits_for_the_device_is_a_device_wait_in_a_collective_call() -> None:
    native = ["cudaStreamSynchronize (libcudart.so.13)", "c10d::ProcessGroupNCCL::barrier (libtorch_cuda.so)"]
    found = classify(process([*native, *BARRIER, "save_checkpoint (train.py:79)", *USER]))
    assert (found.state, found.collective, found.within, found.certain) == (
        "waiting_on_gpu",
        "barrier",
        "checkpointing",
        True,
    )


def test_the_outermost_of_nested_collective_calls_is_named() -> None:
    inner = ["broadcast (torch/distributed/distributed_c10d.py:2600)", *BARRIER[1:]]
    outer = ["broadcast_object_list (torch/distributed/distributed_c10d.py:3200)", *BARRIER[1:]]
    assert classify(process([*inner, *outer, *USER])).collective == "broadcast_object_list"


def test_python_code_without_native_frames_is_not_certain() -> None:
    assert not classify(process(USER)).certain
    assert not classify(process(USER, status="idle")).certain
    assert classify(process([*USER, *START])).certain
    assert classify(process(USER, status="active+gil")).certain


@pytest.mark.parametrize(
    ("thread", "state"),
    [
        (["cudaLaunchKernel (libcudart.so.13)", "at::native::mm (libtorch_cuda.so)", *AUTOGRAD], "waiting_on_gpu"),
        ([*COND_WAIT, "gloo::allreduce (libtorch_cpu.so)", *AUTOGRAD], "in_collective"),
        (["clock_nanosleep (libc.so.6)", "hook (hooks.py:4)", *AUTOGRAD], "sleeping"),
        (["at::native::cpublas::gemm (libtorch_cpu.so)", *AUTOGRAD], "native_running"),
    ],
)
def test_the_autograd_thread_at_work_decides_for_backward(thread: list[str], state: str) -> None:
    others = {"a": AUTOGRAD_IDLE, "": thread}
    found = classify(process([*ENGINE_NATIVE, *ENGINE, *USER], others=others))
    assert (found.state, found.certain) == (state, True)
    assert found.thread_index == 2


def test_a_python_hook_in_an_autograd_thread_decides_without_native_frames() -> None:
    hook = ["all_reduce (torch/distributed/distributed_c10d.py:2810)", "hook (train.py:7)"]
    found = classify(process([*ENGINE, *USER], others={"": hook, "QueueFeederThread": CONDITION}))
    assert (found.state, found.collective) == ("in_collective", "all_reduce")


def test_backward_without_a_working_thread_is_an_uncertain_device_wait() -> None:
    found = classify(process([*ENGINE, *USER], others={"": []}))
    assert (found.state, found.certain) == ("waiting_on_gpu", False)


def test_backward_on_the_cpu_computes_in_the_calling_thread() -> None:
    frames = ["at::native::cpublas::gemm (libtorch_cpu.so)", *ENGINE_NATIVE[3:], *ENGINE, *USER]
    assert classify(process(frames)).state == "native_running"


def test_whole_paths_of_faulthandler_are_understood() -> None:
    site = "/opt/venv/lib/python3.12/site-packages/"
    text = (
        "Thread 0x00007f11bb7fe740 (most recent call first):\n"
        '  File "/usr/lib/python3.12/selectors.py", line 415 in select\n'
        f'  File "{site}torch/utils/data/dataloader.py", line 1310 in _try_get_data\n'
        '  File "/workspace/train.py", line 72 in <module>\n'
    )
    assert classify(read_text(text)["processes"][0]).state == "data_loading"


def test_a_collection_that_faulthandler_or_pystack_mark_is_seen() -> None:
    fault = 'Current thread 0x1 (most recent call first):\n  Garbage-collecting\n  File "/w/a.py", line 1 in <module>\n'
    stack = (
        "Traceback for thread 3 (python) [Has the GIL,Garbage collecting] (most recent call last):\n"
        '    (Python) File "/w/a.py", line 1, in <module>\n'
    )
    for text in (fault, stack):
        assert classify(read_text(text)["processes"][0]).state == "garbage_collecting"


def test_a_process_without_frames_is_unreadable() -> None:
    assert classify(process([])).state == "unreadable"


def test_a_thread_that_sleeps_with_the_interpreter_lock_is_told_from_one_that_runs() -> None:
    stack = process(["pause (libc.so.6)", "ffi_call (libffi.so.8)", *USER])
    main = stack["threads"][0]

    asleep, at_work = ({**stack, "threads": [{**main, "owns_gil": True, "active": each}]} for each in (False, True))

    assert classify(asleep).holds_gil
    assert not classify(at_work).holds_gil
    assert not classify(stack).holds_gil


def test_without_native_frames_a_thread_that_sleeps_with_the_interpreter_lock_is_in_a_native_call() -> None:
    stack = process(USER)

    standing = classify({**stack, "threads": [{**stack["threads"][0], "owns_gil": True, "active": False}]})

    assert (standing.state, standing.certain, standing.holds_gil) == ("native_running", True, True)


SENDING = ["socket.create_connection (socket.py:845)", "Client.send (client.py:20)", "Thread.run (threading.py:982)"]
SERVING = ["accept4 (libc.so.6)", "socket.accept (socket.py:294)", "Listener.serve (client.py:30)"]
LIBRARY = ["recv (libc.so.6)", "SockClient.read (wandb/sdk/lib/sock_client.py:220)", "Thread.run (threading.py:982)"]


@pytest.mark.parametrize(
    ("threads", "state"),
    [
        ({"sender": SENDING}, "network_io"),
        ({"server": SERVING}, None),
        ({"library": LIBRARY}, None),
        ({"library": LIBRARY, "sender": SENDING}, "network_io"),
    ],
)
def test_what_a_thread_of_the_program_is_in_is_told_where_the_main_thread_waits_for_a_lock(
    threads: dict[str, list[str]], state: str | None
) -> None:
    standing = classify(process([*CONDITION, "Queue.put (queue.py:140)", *USER], others=threads))

    assert (standing.state, standing.thread_state) == ("lock_wait", state)
