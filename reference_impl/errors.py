"""Errors of a pipeline step, in one tree.

::

    RuntimeError
    ├── PipelineError
    │   ├── StageError    something failed on this rank; the original exception is its ``__cause__``
    │   └── PeerError     something failed on another rank; the text says where and what
    └── ReplicaError      replicas cannot be synchronised; raised on all of them

    ValueError
    └── OrderError        a stage's operations were called in another order than is possible

Mistakes of configuration (a batch that cannot be split, stages on the wrong rank) are plain
``ValueError``, raised on every rank before anything is sent; a model that cannot be split is a ``SplitError``.
"""

from __future__ import annotations


class PipelineError(RuntimeError):
    """A step that could not be carried out; the pipeline can be used again after it."""


class StageError(PipelineError):
    """A stage (or the loss) failed on this rank; read ``__cause__`` for the original exception."""


class PeerError(PipelineError):
    """Another rank failed and told this one; fix the stage, microbatch and rank that the text names."""


class ReplicaError(RuntimeError):
    """Replicas of a module cannot be synchronised; the text names parameters and ranks, and the remedy."""


class OrderError(ValueError):
    """A stage was asked for something that is not due; nothing was changed. The text says what is due."""


class SplitError(ValueError):
    """A model cannot be split as asked; the text names the split point or module, and says what to do."""
