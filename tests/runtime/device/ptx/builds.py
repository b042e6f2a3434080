"""The kernel compiled for GPUs that are not here, by Triton and NVIDIA's assembler."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from latecomer.runtime.device.kernel import all_reduce
from latecomer.runtime.device.variants import ALIGNMENT, FUSION, REGISTERS, TILE, WARPS
from latecomer.verify.device.program import SETS

ARCHITECTURES = (80, 90, 100)
"""Compute capability, times ten, of the GPUs that are built for."""

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an element of the dtypes that the runtime compiles by itself."""

OTHER_WIDTHS = {"fp64": 8, "i32": 4}
"""Of dtypes that it compiles when it is asked to (``dtypes`` of KernelAllReduce)."""

ALL_BUILDS = [
    (arch, dtype, average)
    for arch in ARCHITECTURES
    for dtype in (*WIDTHS, *OTHER_WIDTHS)
    for average in (False, True)
    if not (average and dtype == "i32")
]
"""All that ``variants`` may compile: integers have no average."""

OPTIONS = {"num_warps": WARPS, "maxnreg": REGISTERS, "enable_fp_fusion": FUSION}
BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def build(kernel, arch, dtype, average, **options):
    """The kernel of a module, compiled for a GPU that is not here."""
    signature = {}
    for parameter in kernel.params:
        kind = "constexpr" if parameter.is_constexpr else parameter.annotation_type
        signature[parameter.name] = kind
    signature |= {"rows": "*i32", "own": f"*{dtype}", "bases": "*i64", "stop": "*i32"}

    constants = {"SETS": SETS, "AVERAGE": average, "DEVICE_CLOCK": True, "TILE": TILE}
    pointers = [name for name, kind in signature.items() if kind.startswith("*")]
    aligned = [["tt.divisibility", ALIGNMENT]]
    attributes = {(kernel.arg_names.index(name),): aligned for name in pointers}
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options=OPTIONS | options)


@functools.cache
def shipped_ptx(arch, dtype, average):
    """The text of the shipped kernel, compiled for a GPU."""
    return build(all_reduce, arch, dtype, average).asm["ptx"]


def spills(cubin, tmp_path):
    """Bytes of local memory, and accesses to it: what did not fit into registers."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    usage = _output(BIN / "cuobjdump", "-res-usage", path)
    instructions = _output(BIN / "nvdisasm", "-c", path)
    local_bytes = int(re.search(r"LOCAL:(\d+)", usage)[1])
    return local_bytes + len(re.findall(r"\b(?:STL|LDL)\b", instructions))


def _output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
