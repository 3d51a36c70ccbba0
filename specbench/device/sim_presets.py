"""Named times for ``device: sim``, computed from published figures of a GPU and a model. No torch here.

Each is a roofline of peak figures, its parts added as if none of them overlapped:

- ``base_us``: the weights are read once a step: parameters * bytes per parameter / memory bandwidth;
- ``us_per_row``: 2 * parameters floating-point operations a row / peak rate of the dtype, dense;
- ``us_per_kv_token``: 2 (keys, values) * layers * KV heads * head size * bytes / memory bandwidth;
- ``bytes_per_us``: peak of the host link.

No kernel reaches these peaks, and gaps between kernels are not in them: a real step takes longer. ``us_per_copy`` is no
published figure: it is assumed, as the order of magnitude of a small copy's fixed cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from specbench.device.times import DeviceTimes, TimesPreset

_ASSUMED_US_PER_COPY = 2.0


@dataclass(frozen=True)
class _Gpu:
    """Published peaks: bytes and bfloat16 operations a microsecond."""

    name: str
    memory: str
    memory_bytes_per_us: float
    compute: str
    operations_per_us: float
    link: str = "PCIe 5.0 x16: 64 GB/s each way"
    link_bytes_per_us: float = 64e3


@dataclass(frozen=True)
class _Model:
    """Published sizes; bfloat16 weights and cache."""

    name: str
    parameters: float
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * _BFLOAT16_BYTES


_BFLOAT16_BYTES = 2
_H100 = _Gpu("NVIDIA H100 SXM", "3.35 TB/s", 3.35e6, "989 TFLOP/s bfloat16, dense", 989e6)
_H200 = _Gpu("NVIDIA H200 SXM", "4.8 TB/s", 4.8e6, "989 TFLOP/s bfloat16, dense", 989e6)


def _preset(gpu: _Gpu, model: _Model) -> TimesPreset:
    times = DeviceTimes(
        base_us=round(model.parameters * _BFLOAT16_BYTES / gpu.memory_bytes_per_us, 1),
        us_per_row=round(2 * model.parameters / gpu.operations_per_us, 3),
        us_per_kv_token=round(model.kv_bytes_per_token / gpu.memory_bytes_per_us, 5),
        us_per_copy=_ASSUMED_US_PER_COPY,
        bytes_per_us=gpu.link_bytes_per_us,
    )
    source = (
        f"computed, not measured: {model.name} ({model.parameters / 1e9:g}B parameters, "
        f"{model.kv_bytes_per_token / 1024:g} KiB of KV cache a token, bfloat16) at the published peaks of one "
        f"{gpu.name} ({gpu.memory}; {gpu.compute}; {gpu.link}); {_ASSUMED_US_PER_COPY:g} us a copy is assumed"
    )
    return TimesPreset(times, source)


H100_SMALL = _preset(_H100, _Model("Qwen3 0.6B", 0.596e9, 28, 8, 128))
H100_8B = _preset(_H100, _Model("Llama 3.1 8B", 8.03e9, 32, 8, 128))
H200_32B = _preset(_H200, _Model("Qwen3 32B", 32.8e9, 64, 8, 128))
