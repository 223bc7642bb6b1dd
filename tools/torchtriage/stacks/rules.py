"""What a frame says about its thread, as one table.

Sources: torch 2.4 to 2.13 (torch/distributed/distributed_c10d.py, torch/utils/data, torch/csrc/distributed/c10d,
torch/csrc/autograd), CUDA runtime and driver API names, NCCL's and gloo's exported names, CPython 3.10 to 3.14, glibc's
system-call wrappers. A wait that a frame names counts for more the closer it is to what the program means by it:
see :class:`Tier`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torchtriage.tool_reports import RankState


class Tier(IntEnum):
    """How far out a frame may be and still decide; a lower tier wins over a higher one."""

    PURPOSE = 0
    """Decides wherever it is on the stack: a device wait, a collective, the DataLoader, a compiler."""
    SERIALIZE = 1
    """As PURPOSE, but a DataLoader or collective further out wins (data sets load files with torch.load too)."""
    SERVICE = 2
    """A network or storage library, called by the user's innermost code."""
    SYNC = 3
    """threading, multiprocessing, sockets: how something waits; a service further out says for what."""
    SYSCALL = 4
    """The system call itself."""


ANY_DEPTH = Tier.SERIALIZE

Role = Literal["plain", "device", "collective", "autograd", "idle_autograd"]


@dataclass(frozen=True)
class Rule:
    """One kind of frame. ``function`` and ``file`` are searched; an empty one fits all."""

    state: RankState
    tier: Tier
    native: bool
    function: str
    file: str
    why: str
    role: Role = "plain"
    certain: bool = True


_P, _Z, _V, _S, _C = Tier.PURPOSE, Tier.SERIALIZE, Tier.SERVICE, Tier.SYNC, Tier.SYSCALL

_DEVICE = "waits for the device"
_COLLECTIVE = "is inside a call that issues a collective"

# Functions of distributed_c10d.py that communicate or wait for peers; get_rank and the like do not.
_C10D_CALLS = (
    r"^_?(?:all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|barrier|monitored_barrier|gather|scatter|reduce|send|"
    r"recv|isend|irecv|batch_isend_irecv|init_process_group|new_group|new_subgroups|new_process_group|split_group|"
    r"destroy_process_group|abort_process_group|store_based_barrier|coalescing_manager|shutdown_backend|"
    r"world_size_agree|shrink_group)"
)

# Where threads and processes begin: such a frame is on every stack of theirs and says nothing of a wait.
_NOT_AN_ENTRY = r"^(?!run$|_?bootstrap(?:_inner)?$|_wrap$|spawn_main$|_main$|_launch$|__init__$|start$|_Popen$|worker$)"

RULES: tuple[Rule, ...] = (
    # Device waits, native: what does not come back before the stream has got so far.
    Rule("waiting_on_gpu", _P, True, r"^(?:cu|cuda|hip)(?:Stream|Ctx|Device|Event|Thread)Synchronize", "",
         _DEVICE + " (synchronize)", "device"),
    Rule("waiting_on_gpu", _P, True, r"^(?:cu|cuda|hip)(?:LaunchKernel|LaunchCooperative|GraphLaunch|LaunchHostFunc)",
         "", "is in a kernel launch, which blocks when the launch queue is full", "device"),
    Rule("waiting_on_gpu", _P, True,
         r"^(?:cuda|hip)(?:Memcpy|Memset|Free|Malloc|EventQuery|StreamQuery|StreamWaitEvent|HostAlloc|FreeHost)|"
         r"^cu(?:Memcpy|Memset|MemFree|MemAlloc|EventQuery|StreamQuery|MemUnmap|MemHostAlloc|MemFreeHost)", "",
         "is in a device call that waits for earlier work", "device"),
    Rule("waiting_on_gpu", _P, True,
         r"^at::native::(?:_local_scalar_dense_(?:cuda|xpu|mps)|nonzero_\w*cuda)|^c10::(?:cuda|hip|xpu)::(?:\w+::)?"
         r"(?:\w*synchronize|memcpy_and_sync)|^THC?PModule_(?:cuda|xpu)Synchronize|^TH[CX]PEvent_synchronize|"
         r"^TH[CX]PStream_synchronize|^(?:aclrtSynchronize|zeEventHostSynchronize|zeCommandQueueSynchronize)", "",
         _DEVICE, "device"),
    Rule("waiting_on_gpu", _P, True,
         r"^c10d::ProcessGroup(?:NCCL|XCCL|HCCL|UCC)::Work\w*::(?:wait|synchronize)", "",
         "waits for a collective's work on the device", "device"),
    # Device waits, Python.
    Rule("waiting_on_gpu", _P, False, r"^synchronize$",
         r"/torch/(?:cuda|xpu|mps|mtia|accelerator|hip)/(?:__init__|streams)\.py$|/torch_npu/npu/(?:utils|streams)\.py$|"
         r"/torch/_streambase\.py$|/torch/npu/", _DEVICE + " (synchronize)", "device"),
    Rule("waiting_on_gpu", _P, False, r"^(?:__format__|__repr__|__array__|__contains__|__iter__)$",
         r"/torch/_tensor\.py$", "reads a tensor's value, which waits for the device when the tensor is there",
         "device", certain=False),
    Rule("waiting_on_gpu", _P, False, r"", r"/torch/_tensor_str\.py$",
         "prints a tensor, which waits for the device when the tensor is there", "device", certain=False),
    # Autograd: the thread that called backward waits for the device threads.
    Rule("waiting_on_gpu", _P, True, r"^torch::autograd::ReadyQueue::pop", "", "is an idle autograd thread",
         "idle_autograd"),
    Rule("waiting_on_gpu", _P, True, r"^THPEngine_run_backward|^torch::autograd::(?:python::Python)?Engine::execute",
         "", "waits for autograd's threads", "autograd", certain=False),
    Rule("waiting_on_gpu", _P, False, r"^_engine_run_backward$", r"/torch/autograd/graph\.py$",
         "waits for autograd's threads", "autograd", certain=False),
    Rule("waiting_on_gpu", _P, False, r"^(?:backward|grad)$", r"/torch/autograd/__init__\.py$",
         "waits for autograd's threads", "autograd", certain=False),
    # Collectives.
    Rule("in_collective", _P, False, _C10D_CALLS, r"/torch/distributed/distributed_c10d\.py$", _COLLECTIVE,
         "collective"),
    Rule("in_collective", _P, False, _C10D_CALLS + r"|^wait_tensor$|^_?(?:all_|reduce_|permute_)\w+$",
         r"/torch/distributed/(?:_functional_collectives|nn/functional|_symmetric_memory/__init__)\.py$", _COLLECTIVE,
         "collective"),
    Rule("in_collective", _P, False,
         r"^(?:_verify_param_shape_across_processes|_sync_module_states|_sync_params_and_buffers)$",
         r"/torch/distributed/utils\.py$", "compares or sends the model's parameters between ranks", "collective"),
    Rule("in_collective", _P, False,
         r"^(?:_sync_buffers|_default_broadcast_coalesced|_distributed_broadcast_coalesced)$",
         r"/torch/nn/parallel/distributed\.py$", "sends buffers from rank 0", "collective"),
    Rule("in_collective", _P, False, r"rendezvous_handler$|^rendezvous$|^_create_c10d_store$",
         r"/torch/distributed/rendezvous\.py$", "waits for its peers at the rendezvous", "collective"),
    Rule("in_collective", _P, True,
         r"^c10d::(?!TCPStore|PrefixStore|FileStore|HashStore|Store|detail|tcputil|Logger|Reducer|Timer|ops::detail)",
         "", _COLLECTIVE, "collective"),
    # DDP's backward over gloo waits here; over NCCL the device's own frames are further in.
    Rule("in_collective", _P, True, r"^c10d::Reducer::(?:finalize_backward|sync_bucket_indices|rebuild_buckets)", "",
         "waits for the reduction of gradients", "collective"),
    Rule("in_collective", _P, True, r"^gloo::", "", "is inside a gloo collective", "collective"),
    Rule("in_collective", _P, True, r"^p?nccl[A-Z]\w+|^bootstrap[A-Z]\w+",
         r"libnccl|libtorch_cuda|librccl|libtorch_hip", "is inside an NCCL call", "collective"),
    Rule("in_collective", _P, True, r"^(?:MPI_|PMPI_)\w+|^ucc_|^ompi_", "", "is inside an MPI or UCC call",
         "collective"),
    # The input pipeline.
    Rule("data_loading", _P, False, r"", r"/torch/utils/data/dataloader\.py$", "waits for the DataLoader"),
    Rule("data_loading", _P, False, r"", r"/torch/utils/data/_utils/(?:fetch|collate|worker|pin_memory)\.py$",
         "loads samples in this process"),
    Rule("data_loading", _P, False, r"",
         r"/(?:torchdata|webdataset|litdata|ffcv|s3torchconnector)/|/streaming/base/|/nvidia/dali/|"
         r"/datasets/(?:arrow_dataset|arrow_reader|arrow_writer|iterable_dataset|builder|load|fingerprint|dataset_dict|"
         r"data_files|table|utils/\w+|download/\w+|formatting/\w+)\.py$|/megatron/core/datasets/",
         "waits for its data set"),
    # The garbage collector.
    Rule("garbage_collecting", _P, True,
         r"^(?:_?gc_collect\w*|_?PyGC_Collect\w*|gc_run|deduce_unreachable|subtract_refs|move_unreachable|"
         r"collect_generations|gc_select_generation|untrack_tuples)|^Garbage.collecting$", "",
         "is in the garbage collector"),
    # Compilers and autotuners; the frames that run compiled code do not count.
    Rule("compiling", _P, False, r"",
         r"/torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode_transformation|codegen|guards)\.py$",
         "is compiling (dynamo)"),
    Rule("compiling", _P, False, r"^_?(?:compile\w*|fx_codegen\w*|codegen\w*|lower\w*|load|load_with_key|write|wait|"
         r"wait_futures|_wait_futures|triton|cuda|cpp|run_node|precompile\w*|autotune\w*|benchmark\w*|"
         r"coordinate_descent_tuning|do_bench\w*)$",
         r"/torch/_inductor/(?:\w+/)*\w+\.py$", "is compiling (inductor)"),
    Rule("compiling", _P, False,
         r"^(?:_compile_fx_inner|compile_fx\w*|aot_module_simplified|create_aot_dispatcher_function|aot_dispatch_\w+)$",
         r"/torch/(?:_inductor|_functorch)/", "is compiling (aot)"),
    Rule("compiling", _P, False, r"", r"/triton/(?:compiler/\w+|backends/\w+/(?:compiler|driver)|runtime/build|"
         r"runtime/cache|testing)\.py$", "is compiling (triton)"),
    Rule("compiling", _P, False, r"^(?:_do_compile|compile|warmup|_bench|benchmark|do_bench\w*|prune_configs)$",
         r"/triton/runtime/(?:jit|autotuner)\.py$", "is compiling or autotuning (triton)"),
    Rule("compiling", _P, False, r"", r"/torch/utils/(?:cpp_extension|file_baton|hipify/\w+)\.py$",
         "builds a C++ or CUDA extension, or waits for another process that does"),
    Rule("compiling", _P, True, r"", r"^(?:.*/)?(?:libtriton|libnvrtc|libnvJitLink|libnvptxcompiler|libLLVM)[\w.\-]*$",
         "is in a compiler"),
    # Checkpoints. torch/utils/checkpoint.py recomputes activations and has nothing to do with them.
    Rule("checkpointing", _Z, False, r"",
         r"/torch/serialization\.py$|/torch/distributed/checkpoint/|/safetensors/|/deepspeed/runtime/checkpoint_engine/|"
         r"/megatron/(?:core/dist_checkpointing/|training/checkpointing\.py)|/nemo/.{0,80}checkpoint|/orbax/|"
         r"/lightning_fabric/plugins/io/|/lightning/fabric/plugins/io/", "writes or reads a checkpoint"),
    Rule("checkpointing", _Z, False,
         r"^_?(?:async_)?(?:save|load|write|read|dump|restore|resume|upload)_?(?:\w{0,24}_)?"
         r"(?:checkpoints?|ckpts?|pretrained|state_dict|model_state|optimizer_state)(?:_\w{1,24})?$|^from_pretrained$",
         r"(?<!/torch/utils/checkpoint\.py)$", "writes or reads a checkpoint"),
    # Services that libraries talk to.
    Rule("network_io", _V, False, r"",
         r"/(?:urllib3|requests|httpx|httpcore|aiohttp|grpc|wandb|mlflow|neptune|comet_ml|sentry_sdk|boto3|botocore|"
         r"aiobotocore|s3fs|s3transfer|gcsfs|google/cloud|google/api_core|azure|huggingface_hub|clearml|zmq)/|"
         r"/fsspec/implementations/(?:http|sftp|ftp|smb|github)\w*\.py$", "is in a network library"),
    Rule("lock_wait", _V, False, r"", r"/filelock/", "waits for a file lock"),
    Rule("file_io", _V, False, r"",
         r"/(?:pyarrow|h5py|zarr|fsspec|lmdb|netCDF4|tifffile)/|/numpy/(?:lib/(?:_?npyio|_?format|_npyio_impl|"
         r"_format_impl)|_core/memmap|core/memmap)\w*\.py$|/pandas/io/", "is in a file library"),
    Rule("file_io", _V, False, r"^(?:_path_stat|_path_isfile|get_data|_fill_cache|_path_is_mode_type)$",
         r"importlib\.?_?bootstrap_external", "reads a module's file"),
    # How the interpreter waits.
    Rule("network_io", _S, False, r"", r"/(?:socket|ssl|http/client|urllib/request|smtplib|ftplib|xmlrpc/client)\.py$",
         "is in a network call"),
    Rule("network_io", _S, True, r"^c10d::(?:TCPStore|PrefixStore|detail::|tcputil)", "", "waits for the store"),
    Rule("lock_wait", _S, False, _NOT_AN_ENTRY,
         r"/(?:threading|queue|concurrent/futures/(?:_base|thread|process))\.py$",
         "waits for a lock, a queue or another thread"),
    Rule("lock_wait", _S, False, _NOT_AN_ENTRY, r"/(?:multiprocessing|multiprocess|torch/multiprocessing)/"
         r"(?:connection|queues|synchronize|pool|popen_\w+|process|managers|spawn|context)\.py$",
         "waits for another process"),
    Rule("lock_wait", _S, False, _NOT_AN_ENTRY, r"/(?:subprocess|asyncio/\w+)\.py$",
         "waits for another process or task"),
    Rule("file_io", _S, False, r"",
         r"/(?:shutil|genericpath|posixpath|pathlib|pathlib/\w+|tempfile|glob|fileinput|gzip|bz2|lzma|zipfile|"
         r"zipfile/\w+|tarfile|mmap|linecache|tokenize)\.py$|<frozen (?:genericpath|posixpath|os)>",
         "is in a file call"),
    # The wait itself.
    Rule("sleeping", _C, True, r"^(?:time_sleep|pysleep|_*(?:GI_+)?(?:clock_)?nanosleep|usleep|_*sleep)(?:@|$)", "",
         "sleeps"),
    Rule("lock_wait", _C, True,
         r"^(?:PyThread_acquire_lock\w*|lock_PyThread_acquire_lock|acquire_timed|_PyMutex_Lock\w*|_PyParkingLot_Park|"
         r"_PySemaphore_Wait|take_gil|PyEval_RestoreThread|PyGILState_Ensure|std::condition_variable\w*::wait\w*|"
         r"std::(?:mutex|timed_mutex)::lock)|"
         r"^_*(?:GI_+|new_)*(?:pthread_(?:cond|mutex|rwlock|barrier)_\w*(?:wait|lock)|pthread_(?:clock|timed)?join\w*|"
         r"sem_\w*wait|futex_abstimed_wait|lll_lock_wait|waitpid|wait4|waitid|flock|semop|semtimedop)", "",
         "waits for a lock or another thread"),
    Rule("network_io", _C, True,
         r"^_*(?:GI_+)?(?:libc_)?(?:connect|accept4?|recv|recvfrom|recvmsg|send|sendto|sendmsg|getaddrinfo)(?:_nocancel)?(?:@|$)|"
         r"^(?:sock_recv|sock_send|sock_connect|sock_accept|_ssl__SSLSocket_\w+|SSL_(?:read|write|connect|do_handshake)\w*)",
         "", "is in a network call"),
    Rule("file_io", _C, True,
         r"^_*(?:GI_+)?(?:libc_)?(?:p?read(?:64|v|v2)?|p?write(?:64|v|v2)?|open(?:at)?(?:64)?|close|fsync|fdatasync|msync|"
         r"l?f?stat(?:at|x)?(?:64)?|newfstatat|getdents(?:64)?|readdir(?:64)?|rename(?:at2?)?|unlink(?:at)?|mkdir(?:at)?|"
         r"sendfile(?:64)?|copy_file_range|fallocate(?:64)?|ftruncate(?:64)?|access|fcntl(?:64)?)(?:_nocancel)?(?:@|$)|"
         r"^(?:_Py_read|_Py_write|_Py_open\w*|_io_FileIO_\w+|os_(?:stat|open|listdir|scandir|rename|remove|fsync)\w*)",
         "", "is in a file call"),
    Rule("lock_wait", _C, False, r"^select$|^_?poll$", r"/selectors\.py$", "waits for input"),
    Rule("lock_wait", _C, True, r"^_*(?:GI_+)?(?:libc_)?(?:p?poll|p?select|epoll_p?wait)(?:64|_nocancel)?(?:@|$)", "",
         "waits for input"),
    # In the driver, under no call that is known.
    Rule("waiting_on_gpu", _C, True, r"", r"(?:^|/)(?:libcuda\.so|libamdhip64|libhsa-runtime|libze_)",
         "is in the device driver", "device", certain=False),
)  # fmt: skip

_COMPILED = tuple((rule, re.compile(rule.function), re.compile(rule.file)) for rule in RULES)


@lru_cache(maxsize=65536)
def rules_for(function: str, file: str, native: bool) -> tuple[Rule, ...]:
    """The rules that fit a frame, in the table's order; of ``Queue.get`` the name is ``get``."""
    name = function if native else function.rpartition(".")[2]
    path = file if native else f"/{file}"
    return tuple(
        rule
        for rule, function_pattern, file_pattern in _COMPILED
        if rule.native == native and function_pattern.search(name) and file_pattern.search(path)
    )
