"""One HTML file out of data: style, code and data inside, and a policy that lets the page reach nothing else.

All text is data, and the code puts it on the page as text: no markup is made of it here or there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from toolkit.atomic import replacing

SCRIPTS = ("uPlot.iife.min.js", "charts.js", "browser.js", "page.js")
STYLES = ("uPlot.min.css", "page.css")


def write_document(path: Path, data: dict[str, Any]) -> Path:
    """The page with these data, written whole or not at all."""
    text = document(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def document(data: dict[str, Any]) -> str:
    """The page's text. What it may run is named by hash, so that nothing in the data could run even as markup."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    style = "\n".join(_asset(name) for name in STYLES)
    policy = f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; base-uri 'none'; form-action 'none'"
    parts = {"POLICY": policy, "STYLE": style, "DATA": embedded(data), "SCRIPT": script}
    # In one pass: a completion may hold such a mark, too.
    return re.sub(r"@([A-Z]+)@", lambda mark: parts[mark[1]], _asset("page.html"))


def embedded(data: Any) -> str:
    """JSON that no HTML parser takes for an end or a beginning of anything: ASCII, without < > &."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files("toolkit.report") / "page" / name).read_text(encoding="utf-8")
