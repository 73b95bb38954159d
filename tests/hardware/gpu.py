"""Tries a session with a GPU, on a machine that has one of NVIDIA: python tests/hardware/gpu.py [gpu:N].

It prints what works and what a session lacks, in about a minute. The package needs only the standard library.
"""

from __future__ import annotations

import asyncio
import sys

from cellblock import CellblockError, CheckpointError, CodeExecutor, Host, Policy
from cellblock.host.doctor import explain_policy
from cellblock.walls.sandbox.gpus import find_gpus, known_gpus

CODE = """
import ctypes, glob, os
print("nodes", sorted(glob.glob("/dev/nvidia*")))
for node in sorted(glob.glob("/dev/nvidia*")):
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        print("cannot open", node, error)
cuda = ctypes.CDLL("libcuda.so.1")
count, context = ctypes.c_int(), ctypes.c_void_p()
for name, arguments in (
    ("cuInit", (0,)),
    ("cuDeviceGetCount", (ctypes.byref(count),)),
    ("cuCtxCreate_v2", (ctypes.byref(context), 0, 0)),
):
    print(name, getattr(cuda, name)(*arguments))  # 0: it works; 100: no device; 304: the system refuses something
print("devices", count.value)
memory = ctypes.c_void_p()
print("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2**20)))
try:
    import torch
    print("torch", torch.cuda.is_available(), torch.ones(3, device="cuda").sum().item())
except ImportError:
    print("torch is not installed")
"""


async def main(name: str) -> int:
    """Return the exit status."""
    print("known", known_gpus())
    policy = Policy(devices=(name,))
    print("policy", explain_policy(policy)["devices"])
    for step in find_gpus([name], 2**26, everything=False).steps:
        print("step", step)
    try:
        async with Host(policy=policy) as host, host.session() as session:
            result = await session.execute(CODE, timeout=60)
            print(result.text, result.error or "")
            try:
                await session.checkpoint()
                print("WRONG: a checkpoint was made although a GPU is open")
            except CheckpointError as error:
                print("checkpoint refused:", error)
        async with CodeExecutor() as plain:
            print("without the option:", (await plain.execute("import glob; glob.glob('/dev/nvidia*')")).text)
    except CellblockError as error:
        print("FAILED:", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*(sys.argv[1:2] or ["gpu:0"]))))
