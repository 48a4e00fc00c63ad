"""The frame of a report: page, sections, tables, and their looks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["page", "section", "table"]

_STYLE = """
:root{--paper:#fff;--ink:#1d2430;--soft:#667085;--rule:#e3e7ee;--a:#2563c9;--b:#0f8a6a;--c:#b4540a;
--good:#0f8a6a;--bad:#c8372d}
@media(prefers-color-scheme:dark){:root{--paper:#14181f;--ink:#e6e9ef;--soft:#98a2b3;
--rule:#2b3340;--a:#7aa7ff;--b:#43c59e;--c:#f0975a;--good:#43c59e;--bad:#f0736a}}
body{margin:0 auto;max-width:62rem;padding:1.5rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin:2.2rem 0 .3rem}
p{margin:.3rem 0 .8rem;max-width:46rem}
small,.lead{color:var(--soft)}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .9rem .3rem 0;border-bottom:1px solid var(--rule);
vertical-align:top}th{color:var(--soft);font-weight:600}.scroll{overflow-x:auto}
.passed{color:var(--good)}.failed{color:var(--bad)}.not-checked{color:var(--soft)}
svg{width:100%;height:auto;font:11px system-ui,sans-serif}svg text{fill:var(--ink)}
.grid{stroke:var(--rule);fill:none}.axis{stroke:var(--soft);fill:none}
.line{fill:none;stroke-width:2}.bar{fill:var(--a);fill-opacity:.55}
.marker{stroke:var(--soft);fill:none;stroke-dasharray:4 3}
.charts,.photos{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(19rem,1fr))}
.photos{grid-template-columns:repeat(auto-fill,minmax(8rem,1fr))}
figure{margin:0}img{border-radius:4px}figcaption{font-size:.85rem;line-height:1.35}
"""


def page(title: str, sections: Sequence[str]) -> str:
    """Return a whole document.

    Args:
        title: Plain text.
        sections: HTML; empty ones vanish.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n"
        + "\n".join(s for s in sections if s)
        + "\n</body></html>\n"
    )


def section(title: str, lead: str, body: str) -> str:
    """Return one section.

    Args:
        title: Plain text.
        lead: One HTML sentence under the title, or empty.
        body: HTML.
    """
    text = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section><h2>{escape(title)}</h2>{text}{body}</section>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; cells are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'
