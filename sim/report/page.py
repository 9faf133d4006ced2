"""One self-contained HTML page: inline style, figures as data URIs, nothing fetched, every text escaped."""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

STYLE: Final = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #fff; --muted: #59636e; --line: #d8dee4; --soft: #f6f8fa;
  --good: #116329; --bad: #a40e26; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6edf3; --bg: #0d1117; --muted: #9198a1; --line: #3d444d;
  --soft: #151b23; --good: #57c46f; --bad: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 1120px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.lead, figcaption, .note, caption { color: var(--muted); }
ul.verdicts { padding-left: 1.2rem; } ul.verdicts li { margin: .25rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .55rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th.l, td.l { text-align: left; } thead th { border-bottom: 2px solid var(--line); vertical-align: bottom; }
td.wrap { white-space: normal; text-align: left; min-width: 20rem; }
.better { color: var(--good); font-weight: 600; } .worse, .failed { color: var(--bad); font-weight: 600; }
figure { margin: 1.2rem 0; } figure img { max-width: 100%; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--line); padding: 6px; box-sizing: border-box; }
figcaption { font-size: 13.5px; } .note { font-size: 13.5px; margin: .2rem 0; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; font-size: 12.5px; line-height: 1.4; }
summary { cursor: pointer; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """The whole document."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</body></html>\n",
        ]
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it; nothing at all where that is empty."""
    inside = "\n".join(part for part in parts if part)
    return f"<h2>{escape(title)}</h2>\n{inside}" if inside else ""


def lead(text: str) -> str:
    """The muted line under the title."""
    return f'<p class="lead">{escape(text)}</p>'


def notes(lines: Iterable[str]) -> str:
    """Small remarks, one a line."""
    return "\n".join(f'<p class="note">{escape(line)}</p>' for line in lines)


def items(lines: Iterable[tuple[str, str]]) -> str:
    """A list of (text, class name)."""
    inside = "\n".join(f'<li class="{name}">{escape(text)}</li>' for text, name in lines)
    return f'<ul class="verdicts">\n{inside}\n</ul>' if inside else ""


def scroll(table: str) -> str:
    """A table that scrolls by itself where the window is narrow."""
    return f'<div class="scroll">{table}</div>'


def figure(png: bytes, caption: str, width: int) -> str:
    """A figure of the given width in CSS pixels, inside the page."""
    data = b64encode(png).decode("ascii")
    return (
        f'<figure><img width="{width}" alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def folded(summary: str, value: Any) -> str:
    """Plain data as indented JSON, folded away."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def facts(rows: Mapping[str, Sequence[str] | str]) -> str:
    """Names and values as a table of two columns; empty values are left out."""
    lines: list[str] = []
    for name, value in rows.items():
        text = value if isinstance(value, str) else ", ".join(value)
        if text:
            lines.append(f'<tr><td class="l">{escape(name)}</td><td class="wrap">{escape(text)}</td></tr>')
    return f"<table><tbody>{''.join(lines)}</tbody></table>"
