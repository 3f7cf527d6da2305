"""Checks that methods of adapters and pipelines take the arguments that they are called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pipeconform.errors import ContractError

__all__ = ["require_call"]


def require_call(method: Callable[..., Any], name: str, arguments: Sequence[str]) -> None:
    """Refuse a method that cannot be called with these positional arguments.

    Raises:
        ContractError: it takes fewer or more; the message shows the call.
    """
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        wanted = f"{name.rpartition('.')[2]}({', '.join(arguments)})"
        raise ContractError(
            f"{name}{signature} is called as {wanted} ({error}); change its parameters"
        ) from None
