"""Where the defects were reported that faults make again, by the fault's name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["SOURCES"]

_TORCH = "https://github.com/pytorch/pytorch"
_PIPPY = "https://github.com/pytorch/PiPPy"
_TITAN = "https://github.com/pytorch/torchtitan"
_DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM"

SOURCES: Mapping[str, str] = MappingProxyType(
    {
        # scale and losses
        "not-divided": f"{_DEEPSPEED}/issues/7773",
        "one-stage-scaled": f"{_DEEPSPEED}/pull/8154",
        "sum-divided": "https://github.com/areal-project/AReaL/pull/1273",
        "earlier-rescaled": f"{_TITAN}/issues/1733",
        "first-count-kept": f"{_DEEPSPEED}/pull/4859",
        "targets-shifted": f"{_DEEPSPEED}/issues/5729",
        "latest-loss-only": f"{_DEEPSPEED}/issues/3900",
        "losses-zero": f"{_DEEPSPEED}/issues/4661",
        # gradients
        "gradient-demanded": f"{_TORCH}/issues/153484",
        "input-gradient-demanded": f"{_TORCH}/issues/152827",
        "no-gradient-refused": f"{_PIPPY}/pull/1029",
        "gradient-asked-for-all": f"{_PIPPY}/issues/945",
        "parameters-forgotten": f"{_PIPPY}/issues/945",
        "shared-counted-twice": f"{_TORCH}/issues/180952",
        "outputs-summed": f"{_TORCH}/issues/170277",
        "structured-without-backward": f"{_PIPPY}/pull/738",
        "outputs-counted": f"{_PIPPY}/issues/135",
        "frozen-trained": f"{_TITAN}/pull/3886",
        # shared weights and norms
        "tied-twice": f"{_MEGATRON}/pull/7227",
        "own-norm": f"{_TITAN}/issues/596",
        "ties-broken": f"{_MEGATRON}/issues/656",
        "ties-not-added": f"{_PIPPY}/issues/32",
        # communication and buffers
        "scrambled": f"{_TORCH}/issues/62283",
        "expanded-gradient-cut": "https://github.com/NVIDIA-NeMo/Automodel/pull/3318",
        "position-taken-for-process": f"{_PIPPY}/pull/1014",
        "opposite-orders": f"{_TORCH}/issues/172668",
        "few-hang": f"{_TITAN}/issues/775",
        "third-tensor-dropped": f"{_DEEPSPEED}/issues/969",
        "batch-of-one-squeezed": f"{_PIPPY}/issues/1054",
        # sizes and the order of steps
        "uneven-buffers": f"{_TORCH}/issues/126600",
        "fewer-chunks": f"{_PIPPY}/pull/192",
        "first-sizes-kept": "https://github.com/hpcaitech/ColossalAI/issues/5940",
        "evaluation-size-kept": f"{_DEEPSPEED}/issues/3045",
        "evaluation-count-kept": f"{_DEEPSPEED}/pull/6484",
        "evaluated-first": f"{_TORCH}/issues/162822",
        # arguments
        "kwargs-for-first-only": f"{_TORCH}/pull/136416",
        "objects-in-backward": f"{_TITAN}/issues/3112",
        # memory
        "graphs-kept-in-step": f"{_TORCH}/issues/128910",
        "weight-parts-kept": f"{_TORCH}/issues/136766",
        # names
        "names-prefixed": f"{_PIPPY}/pull/915",
        "named-by-position": "https://github.com/meta-pytorch/torchrec/pull/4759",
    }
)
