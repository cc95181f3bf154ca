"""What GPUs and links can do by their data sheets, and what share of it engines have been seen to
reach. Only what fits start from is worked out of it: what an engine reports counts for more.

Giga is 10^9 here, as it is on data sheets. A device shows some percent more memory than its sheet
says; that goes to its context and driver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from kvstore.core.cost import TransferCost
from kvstore.errors import Invalid

GIGA, TERA = 1e9, 1e12


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peaks of one device. FLOP/s are dense: sheets star those with sparsity, which are twice as
    many. Bandwidths of links are of one direction: sheets give the sum of both. Raises `Invalid`
    naming the field that makes no sense.
    """

    name: str
    memory_bytes: float
    memory_bytes_per_second: float
    bf16_flops: float  # a second
    pcie_bytes_per_second: float
    fp8_flops: float = 0.0  # a second; 0: computes in bf16 whatever weights are stored in
    nvlink_bytes_per_second: float = 0.0  # 0: has none

    def __post_init__(self) -> None:
        for item in fields(self)[1:]:
            value = getattr(self, item.name)
            least = 0 if item.name in ("fp8_flops", "nvlink_bytes_per_second") else 1
            if not least <= value < math.inf:
                raise Invalid(f"Gpu.{item.name} cannot be {value!r}")

    @property
    def link_bytes_per_second(self) -> float:
        """Of the best way to the other GPUs of its machine."""
        return self.nvlink_bytes_per_second or self.pcie_bytes_per_second

    def flops(self, parameter_bytes: float) -> float:
        """Of matrix products a second, with weights of that size. Those of 4 bits are widened and
        multiplied as bf16."""
        return self.fp8_flops if parameter_bytes == 1 and self.fp8_flops else self.bf16_flops


# NVIDIA A100 Tensor Core GPU data sheet, column A100 80GB SXM.
A100 = Gpu("A100-SXM-80GB", 80 * GIGA, 2039 * GIGA, 312 * TERA, 32 * GIGA, 0, 300 * GIGA)
# NVIDIA H100 Tensor Core GPU data sheet, column H100 SXM.
H100 = Gpu("H100-SXM", 80 * GIGA, 3350 * GIGA, 989.5 * TERA, 64 * GIGA, 1979 * TERA, 450 * GIGA)
# NVIDIA H200 Tensor Core GPU data sheet, column H200 SXM.
H200 = Gpu("H200-SXM", 141 * GIGA, 4800 * GIGA, 989.5 * TERA, 64 * GIGA, 1979 * TERA, 450 * GIGA)
# NVIDIA L40S data sheet.
L40S = Gpu("L40S", 48 * GIGA, 864 * GIGA, 362.05 * TERA, 32 * GIGA, 733 * TERA)
GPUS = (A100, H100, H200, L40S)


def gpu_called(device: str) -> Gpu | None:
    """By a driver's name for it, such as "NVIDIA H100 80GB HBM3"; None where no sheet is known."""
    words = device.replace("-", " ").split()
    return next((one for one in GPUS if one.name.partition("-")[0] in words), None)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A kind of link: bytes a second that large transfers reach one way, and what a small one
    takes. Raises `Invalid` as `TransferCost` does."""

    name: str
    bytes_per_second: float
    latency_seconds: float

    def __post_init__(self) -> None:
        self.cost  # noqa: B018  (its checks are those of a cost)

    @property
    def cost(self) -> TransferCost:
        return TransferCost(self.latency_seconds, self.bytes_per_second)


# Four fifths of the sheet's peak for links of a board, whose packets and flow control take the
# rest; nine tenths of the line rate for networks. Latency is of one operation as software sees it.
NVLINK3 = Fabric("NVLink 3", 240 * GIGA, 10e-6)
NVLINK4 = Fabric("NVLink 4", 360 * GIGA, 10e-6)
# NVIDIA GB200 NVL72 data sheet: 130 TB/s of 72 GPUs, both directions summed; 0.9 TB/s of one, one
# way, to any other of its domain.
NVLINK5 = Fabric("NVLink 5", 720 * GIGA, 10e-6)
PCIE4 = Fabric("PCIe 4 x16", 25 * GIGA, 10e-6)
PCIE5 = Fabric("PCIe 5 x16", 50 * GIGA, 10e-6)
RDMA_100 = Fabric("RDMA 100 Gb/s", 11.25 * GIGA, 20e-6)
RDMA_200 = Fabric("RDMA 200 Gb/s", 22.5 * GIGA, 20e-6)
RDMA_400 = Fabric("RDMA 400 Gb/s", 45 * GIGA, 20e-6)
TCP_10 = Fabric("TCP 10 Gb/s", 1.125 * GIGA, 200e-6)
FABRICS = (NVLINK3, NVLINK4, NVLINK5, PCIE4, PCIE5, RDMA_100, RDMA_200, RDMA_400, TCP_10)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The share of its peak that each part of an engine's work reaches. Raises `Invalid` naming
    the field that makes no sense.

    What is here puts Llama-3 70B on 8 A100 beside 0.02 + 1.12e-4 n + 1.05e-9 n^2 seconds, a
    published fit of prefills measured on 8 A800.
    """

    matmul: float = 0.6  # of FLOP/s: products of long prompts reach 0.6 to 0.75, small layers less
    attention: float = 0.5  # of FLOP/s: its softmax runs where no products do
    memory: float = 0.8  # of memory bandwidth: what a long read reaches
    link: float = 0.7  # of a link's bandwidth: all-reduces of some MiB, which do not fill it
    memory_used: float = 0.9  # of memory that engines fill with weights and KV; activations, rest
    reduce_seconds: float = 15e-6  # of one all-reduce however small: launches, and GPUs that wait
    prefill_seconds: float = 5e-3  # of a prefill beside its kernels: scheduling, sampling, launches
    decode_seconds: float = 1e-3  # of a decode step: less, since its launches are recorded ones

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            good = 0 <= value < math.inf if item.name.endswith("_seconds") else 0 < value <= 1
            if not good:
                raise Invalid(f"Efficiency.{item.name} cannot be {value!r}")


SEEN = Efficiency()
