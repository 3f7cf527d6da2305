"""Checks that methods of adapters and pipelines take the arguments that they are called with."""

from __future__ import annotations

import functools
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
        signature = _signature(method)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        wanted = f"{name.rpartition('.')[2]}({', '.join(arguments)})"
        raise ContractError(
            f"{name}{signature} is called as {wanted} ({error}); change its parameters"
        ) from None


def _signature(method: Callable[..., Any]) -> inspect.Signature:
    """The signature, without `self`; a class's function is looked at once, not once per instance."""
    function, kind = getattr(method, "__func__", None), type(getattr(method, "__self__", None))
    if inspect.isfunction(function) and vars(kind).get(function.__name__) is function:
        return _bound(function)
    return inspect.signature(method)


@functools.lru_cache(maxsize=256)
def _bound(function: Callable[..., Any]) -> inspect.Signature:
    # binding takes away the first parameter, whatever its kind
    return inspect.signature(function.__get__(object()))
