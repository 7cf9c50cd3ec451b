"""The page /docs: a plain table of the API, written from its OpenAPI description."""

from __future__ import annotations

import json
from html import escape
from typing import Any

EXAMPLE = """curl -s http://127.0.0.1:8000/api/predict -H 'Content-Type: application/json' \\
  -d '{"inputs": ["how do i say hello in french"], "rule": "red", "risk": 0.01}'"""


def render_docs(schema: dict[str, Any]) -> str:
    """Return the HTML of the page.

    Parameters
    ----------
    schema
        The OpenAPI description of the API.
    """
    sections = [
        _operation(path, method.upper(), operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    info = schema["info"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>redx serve: HTTP API</title><link rel="stylesheet" href="/page/style.css"></head>
<body class="docs"><main><h1>HTTP API of redx serve {escape(info["version"])}</h1>
<p>{escape(info.get("summary", ""))} The same as <a href="/openapi.json">OpenAPI</a>; <a href="/">back to the page</a>.
Every error is <code>{{"error": "one sentence"}}</code>: 413 for a body that is too large, 422 for one that cannot be
used, 503 with Retry-After where too many requests wait. With --token, send Authorization: Bearer TOKEN.</p>
<pre>{escape(EXAMPLE)}</pre>
{"".join(sections)}</main></body></html>"""


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = [(field["name"], field["schema"], field.get("description", "")) for field in operation.get("parameters", [])]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    rows += [(name, field, field.get("description", "")) for name, field in body.get("properties", {}).items()]
    cells = "".join(
        f"<tr><th scope='row'><code>{escape(name)}</code></th><td>{escape(_type(field))}</td>"
        f"<td>{escape(_default(name, field, body))}</td><td>{escape(text or field.get('description', ''))}</td></tr>"
        for name, field, text in rows
    )
    head = "<thead><tr><th>name</th><th>type</th><th>default</th><th>meaning</th></tr></thead>"
    table = f"<div class='scroll' tabindex='0'><table>{head}<tbody>{cells}</tbody></table></div>" if rows else ""
    return f"<h2><code>{method} {escape(path)}</code></h2><p>{escape(operation.get('summary', ''))}</p>{table}"


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    kind = field.get("type", "anything")
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}"
    return (
        f"object of {_type(field['additionalProperties'])}"
        if isinstance(field.get("additionalProperties"), dict)
        else kind
    )


def _default(name: str, field: dict[str, Any], body: dict[str, Any]) -> str:
    return "required" if name in body.get("required", []) else json.dumps(field.get("default"))
