"""Small training jobs whose memory is recorded. ``PROGRAM`` is the name of one of them.

record.py of the folder above starts them. To try one without a GPU:
``DEVICE=cpu PROGRAM=train python train.py </dev/null``.
"""

import functools
import json
import os
import sys

import loop
import monitor
import ranks
import serve
import staging
from setting import DEVICE, ON_GPU, log, recorded

MODULES = (loop, monitor, serve, staging, ranks)


def occupy(leave_gib=2.2):
    """Take the device's memory until nobody listens any more."""
    import torch

    if ON_GPU:
        free, _ = torch.cuda.mem_get_info(DEVICE)
        held = torch.empty(int(free - leave_gib * (1 << 30)), dtype=torch.uint8, device=DEVICE)
        log(f"holds {held.numel()} bytes")
    log("ready")
    sys.stdin.readline()


def find(name):
    """The program of this name."""
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


def main():
    options = json.loads(os.environ.get("OPTIONS", "{}"))
    name = os.environ["PROGRAM"]
    # Until then nothing has touched the GPU, so that the starter can say when that begins.
    if not sys.stdin.isatty():
        sys.stdin.readline()
    if name == "occupy":
        occupy()
        return
    program = functools.partial(find(name), **options)
    with recorded():
        program()
    log("finished")


if __name__ == "__main__":
    main()
