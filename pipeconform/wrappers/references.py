"""Outputs that are remote references, and the RPC agent that they need."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import rpc

from pipeconform.case.wrapper_case import WrapperCase

__all__ = ["agent_for", "is_reference", "reference_to"]


@contextmanager
def agent_for(case: WrapperCase) -> Iterator[None]:
    """Run an RPC agent for this process only, if a case has references; no reference leaves its process."""
    if case.form != "reference":
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        options = rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{Path(folder) / 'store'}", num_worker_threads=1
        )
        rpc.init_rpc("alone", rank=0, world_size=1, rpc_backend_options=options)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            rpc.shutdown(graceful=False)


def reference_to(value: Any) -> Any:
    """A remote reference to a value in this process."""
    return rpc.RRef(value)


def is_reference(value: Any) -> bool:
    """Whether a value is a remote reference to a value in this process."""
    return isinstance(value, rpc.RRef) and value.is_owner()
