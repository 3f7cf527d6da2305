"""Does in the fork server, when it is imported there, what every rank would otherwise do again for its first cases.

It imports what torch imports on first use, and asks torch for what does not change. No implementation is imported or
asked: that is the ranks' part alone.
"""

from __future__ import annotations

import contextlib
import importlib

from pipeconform.ranks.recording.kernels import unseen

_ON_FIRST_USE = (
    "torch._export.passes._node_metadata_hook",
    "torch._export.passes.replace_autocast_with_hop_pass",
    "torch._export.passes.replace_set_grad_with_hop_pass",
    "torch._export.passes.replace_with_hop_pass_util",
    "torch._inductor.compiler_bisector",
    "torch._inductor.fx_passes.dedupe_symint_uses",
    "torch._inductor.sizevars",
    "torch._subclasses.schema_check_mode",
    "torch.fx.experimental.validator",
)
"""Modules that export and training steps import; not every release of torch has all of them."""

for _name in _ON_FIRST_USE:
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)
unseen()  # looks through all operators that torch knows
