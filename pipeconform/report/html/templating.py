"""Jinja for all pages: escaped text, our style sheet and scripts, and a policy that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeconform.showing import shown

__all__ = ["render"]

_PACKAGE = "pipeconform.report.html"


def render(template: str, *, script: str = "", **values: object) -> str:
    """A page made of a template; `script` names the file of its script, if it has one."""
    code = _own_file(script) if script else Markup("")
    return (
        _environment()
        .get_template(template)
        .render(style=_own_file("page.css"), script=code, policy=_policy(code), **values)
    )


def _environment() -> Environment:
    """Jinja with our templates; text is escaped."""
    found = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit,
    )
    found.filters["camel"] = _breakable
    return found


def _own_file(name: str) -> Markup:
    text = resources.files(_PACKAGE).joinpath("templates", name).read_text("utf-8")
    return Markup(text)  # noqa: S704 - our own file


def _fit(value: object) -> object:
    """A value as a template prints it, control characters escaped; pictures are markup already and stay as they are."""
    if isinstance(value, Markup):
        return Markup(shown(str(value), limited=False))  # noqa: S704 - escapes hold no markup
    return shown(value) if isinstance(value, str) else value


def _breakable(name: str) -> Markup:
    """A CamelCase name with possible line breaks between its words."""
    words = re.findall(r"[A-Z]+(?![a-z])[^A-Za-z\d]*|[A-Z]?[a-z]+[^A-Za-z\d]*|\d[\dA-Z]*[^A-Za-z\d]*", name)
    return Markup("<wbr>").join(words if "".join(words) == name else [name])


def _policy(script: str) -> str:
    """The content security policy: nothing is loaded, and only our own script runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": f"'sha256-{digest}'" if script else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{what} {who}" for what, who in allowed.items())
