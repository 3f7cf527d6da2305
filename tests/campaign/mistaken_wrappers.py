"""Wrapper adapters with mistakes of their own."""

from __future__ import annotations

from pipeconform.reference_impl.wrapper_adapter import ReferenceWrapper


class Misspells(ReferenceWrapper):
    def wrap(self, module, options):
        return super().wrap(module, options.al)


class TakesOne(ReferenceWrapper):
    def wrap(self, module):
        return module
