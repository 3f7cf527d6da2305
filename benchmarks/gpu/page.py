"""The page of a results folder: what was run, what came out, and where the rest lies."""

from __future__ import annotations

import collections
import datetime
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from benchmarks.gpu.measuring import MEASURED, Measured
from benchmarks.gpu.parts import Target
from benchmarks.gpu.running import OUTPUT, Record
from pipeconform.supported import torch_version

__all__ = ["write_page"]

_MOST = 20_000  # characters of an output on the page
_PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>pipeconform on {{ kind }}</title>
<meta name="viewport" content="width=device-width">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: .5rem 0 }
td, th { border: 1px solid #bbb; padding: .2rem .6rem; text-align: left }
td.number { text-align: right } pre { overflow: auto; background: #f4f4f4; padding: .6rem; font-size: 13px }
.failed, .cut { color: #a30000; font-weight: 600 } .missing { color: #5c5c5c } h2 { margin-top: 2rem }
</style></head><body>
<h1>pipeconform on {{ kind }}</h1>
<p>{{ names }}. Backend {{ backend }}. torch {{ torch }}, Python {{ python }}. Written {{ now }} UTC.</p>
<table><tr><th>part</th><th>what</th><th>state</th><th>seconds</th><th>result</th></tr>
{% for part in parts %}
<tr><td><a href="#{{ part.record.name }}">{{ part.record.name }}</a></td><td>{{ part.record.title }}</td>
<td class="{{ part.record.state.partition(' ')[0] }}">{{ part.record.state }}</td>
<td class="number">{{ '%.0f' % part.record.seconds }}</td><td>{{ part.short }}</td></tr>
{% endfor %}
</table>
{% for part in parts %}
<h2 id="{{ part.record.name }}">{{ part.record.title }}</h2>
{% if part.record.why %}<p class="missing">Not run: {{ part.record.why }}</p>{% endif %}
{% for link in part.links %}<p><a href="{{ link }}">{{ link }}</a></p>{% endfor %}
{% if part.measured %}
<table><tr>{% for cell in part.measured.head %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in part.measured.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</table>
{% endif %}
{% if part.output %}
<details{% if part.opened %} open{% endif %}><summary>output</summary><pre>{{ part.output }}</pre></details>
{% endif %}
{% endfor %}
</body></html>
""")


def write_page(records: Sequence[Record], *, target: Target, results: Path) -> None:
    """Write ``report.html`` about the parts that are kept in `results`."""
    machine = target.machine
    text = _PAGE.render(
        kind=machine.device_type,
        names=", ".join(machine.names) or f"{machine.count or 0} devices",
        backend=target.backend,
        torch=torch_version(),
        python=platform.python_version(),
        now=datetime.datetime.now(datetime.UTC).isoformat(" ", "minutes").removesuffix("+00:00"),
        parts=[_shown(one, results) for one in records],
    )
    part = results / "report.html.part"
    part.write_text(text, encoding="utf-8")
    part.replace(results / "report.html")


def _shown(record: Record, results: Path) -> dict[str, Any]:
    folder = results / record.name
    return {
        "record": record,
        "short": _short(folder) or record.why,
        "links": [
            f"{record.name}/{path.relative_to(folder).as_posix()}"
            for path in sorted(folder.rglob("report.html"))
        ],
        "measured": _measured(folder),
        "output": _output(folder),
        "opened": record.state in ("failed", "cut off") or record.name == "doctor",
    }


def _short(folder: Path) -> str:
    """``74 passed, 2 failed`` of the part's cells, if cells were judged."""
    try:
        cells = json.loads((folder / "result.json").read_bytes())["cells"]
    except (OSError, ValueError, KeyError):
        return ""
    counted = collections.Counter(cell["status"] for cell in cells)
    return ", ".join(f"{number} {status}" for status, number in counted.most_common())


def _measured(folder: Path) -> Measured | None:
    try:
        return msgspec.json.decode((folder / MEASURED).read_bytes(), type=Measured)
    except (OSError, msgspec.MsgspecError):
        return None


def _output(folder: Path) -> str:
    try:
        text = (folder / OUTPUT).read_text("utf-8", errors="replace")
    except OSError:
        return ""
    return text if len(text) <= _MOST else f"…\n{text[-_MOST:]}"
