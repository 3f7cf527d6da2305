"""What NCCL needs so that several ranks can share a GPU: release 2.30, and three settings.

Sources: NCCL's release notes for 2.30 and its page of environment variables; without the third, kernels of ranks that
wait for one another can fill the GPU before the last of them has begun.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SHARING", "reason_against_sharing", "sharing_settings"]

SHARING: Mapping[str, str] = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",  # NVLink SHARP does not go with ranks that share a GPU
    "NCCL_MAX_CTAS": "2",  # of every kernel: all ranks' kernels must fit on the GPU together
}
_FIRST = (2, 30)


def sharing_settings(own: Mapping[str, str]) -> dict[str, str]:
    """The settings for ranks that share a GPU, without those that the user's `own` environment decides."""
    return {name: value for name, value in SHARING.items() if name not in own}


def reason_against_sharing(release: tuple[int, ...] | None) -> str | None:
    """Why ranks cannot share a GPU with this release of NCCL; None if they can, or it is not known."""
    if release is None or release[:2] >= _FIRST:
        return None
    return (
        f"--ranks-per-device needs NCCL 2.30 or newer, this torch has {'.'.join(map(str, release))}: "
        f"preload a newer libnccl.so.2 (LD_PRELOAD), or take --backend gloo"
    )
