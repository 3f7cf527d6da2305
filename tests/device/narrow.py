"""The reference, claiming what a device without float64 can hold."""

from __future__ import annotations

import dataclasses

from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import Description

__all__ = ["Narrow"]


class Narrow(ReferenceAdapter):
    """Computes in 32 and 16 bits."""

    def describe(self) -> Description:
        told = super().describe()
        claims = told.capabilities
        boundary = dataclasses.replace(claims.boundary, dtypes=("float32", "bfloat16", "float16"))
        return dataclasses.replace(told, capabilities=dataclasses.replace(claims, boundary=boundary))
