"""Claims with which less is seen of an implementation: a certificate names them."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Capabilities
from pipeconform.certificate.decision import capabilities_of
from pipeconform.report.result import Result

__all__ = ["weakening"]


def weakening(result: Result) -> tuple[str, ...]:
    """The claims of the judged implementation with which less is seen, each with what it costs."""
    capabilities = capabilities_of(result)
    return () if capabilities is None else tuple(_weakening(capabilities))


def _weakening(claims: Capabilities) -> Iterator[str]:
    if claims.inputs_consumed_by == "all":
        yield 'inputs_consumed_by="all": ranks without the first stage are given finite inputs instead of NaN'
    if claims.targets_consumed_by == "all":
        yield 'targets_consumed_by="all": ranks without the last stage are given finite targets instead of NaN'
    if claims.kwargs_scope == "pipeline":
        yield 'kwargs_scope="pipeline": every rank is given the true keyword arguments of all stages'
    if claims.world == "single_process":
        yield 'world="single_process": nothing crosses between ranks that could be seen'
