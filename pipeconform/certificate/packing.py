"""All files of a package: the data, and the page and the badge that are made from it."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.certificate.badge import badge
from pipeconform.certificate.contents import BADGE, PAGE, Contents, data_files
from pipeconform.certificate.package import Doubt, Package
from pipeconform.certificate.page import certificate_page

__all__ = ["packed", "view_doubts", "views"]


def packed(contents: Contents) -> dict[str, bytes]:
    """The files of a package, by name.

    Raises:
        UnknownNameError: there is no such level.
    """
    return data_files(contents) | views(contents)


def views(contents: Contents) -> dict[str, bytes]:
    """The page and the badge, by name.

    Raises:
        UnknownNameError: there is no such level.
    """
    return {PAGE: certificate_page(contents), BADGE: badge(contents.certificate)}


def view_doubts(package: Package, contents: Contents) -> Iterator[Doubt]:
    """Doubts about a page or badge that is not what its contents, in which there is no doubt, give."""
    for name, data in views(contents).items():
        found = package.files.get(name)
        if found is None:
            yield Doubt(file=name, text="missing: no certification package is complete without it")
        elif found != data:
            yield Doubt(file=name, text="says something else than what is made from the other files")
