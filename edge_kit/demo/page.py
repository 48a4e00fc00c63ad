"""The demo's report: one HTML page that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from edge_kit.demo.figures import Answer, Figures

__all__ = ["page"]

_BINS = 20

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;
  color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem}
.tile{background:#eef4f8;border-radius:.6rem;padding:.7rem 1rem;min-width:9rem}
.tile b{display:block;font-size:1.4rem}
table{border-collapse:collapse}
td,th{padding:.3rem .9rem;text-align:left;border-bottom:1px solid #d5e0e8}
td.n{text-align:right;font-variant-numeric:tabular-nums}
.photos{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.8rem}
.photos img{width:100%;border-radius:.4rem;display:block}
.photos p{margin:.2rem 0 0;font-size:.82rem;line-height:1.3}
.right{color:#1d6b3a}.wrong{color:#a32020}
svg text{font:12px system-ui,sans-serif;fill:#1c2733}
"""


def page(figures: Figures, thumbnails: Mapping[str, bytes]) -> str:
    """Return the page.

    Args:
        figures: What was measured.
        thumbnails: JPEG files of the photos to show, by `Answer.name`, in this order.
    """
    f = figures.to_json()
    by_name = {a.name: a for a in figures.answers}
    shown = "".join(
        _photo(by_name[n], data, figures) for n, data in thumbnails.items() if n in by_name
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>edge-kit demo</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>
<body><h1>edge-kit demo: {f["photos"]} photos</h1>
<p>A device classified each photo with an int8 {escape(figures.engine)} model and answered what it
was sure of. Of the rest it sent features over MQTT ({escape(figures.broker)}); a worker answered
those.</p>
<div class="tiles">{_tiles(f)}</div>
<h2>Who is right how often</h2>{_accuracy(f)}
<h2>How sure the device was</h2>{_entropy(figures)}
<h2>Bytes for a doubtful photo</h2>{_bytes(f)}
<h2>Time</h2>{_latency(f)}
<h2>The most doubtful photos</h2><div class="photos">{shown}</div>
</body></html>
"""


def _tiles(f: Mapping[str, Any]) -> str:
    tiles = [
        (f"{f['device_share']:.0%}", "answered on the device"),
        (f"{f['accuracy']['hybrid']:.1%}", "of all answers right"),
        (_number(f["bytes_per_offloaded"], "bytes"), "a message, header included"),
        (_number(f["latency_ms"]["roundtrip_p50"], "ms"), "to the cloud and back, median"),
        (str(f["lost"]), "samples lost"),
    ]
    return "".join(f'<div class="tile"><b>{v}</b>{t}</div>' for v, t in tiles)


def _accuracy(f: Mapping[str, Any]) -> str:
    rows = [
        ("device", "the device alone, every photo"),
        ("cloud", "the cloud half alone, every photo"),
        ("hybrid", "both, as they ran"),
    ]
    body = "".join(
        f"<tr><td>{text}</td><td class=n>{f['accuracy'][key]:.1%}</td></tr>" for key, text in rows
    )
    note = f"Of {f['photos']} photos: few, so differences of a point or two mean little."
    return f"<table>{body}</table><p>{note}</p>"


def _entropy(figures: Figures) -> str:
    """Draw the histogram of entropies, sure to unsure, with T."""
    values = np.array([a.entropy for a in figures.answers])
    counts, _edges = np.histogram(values, bins=_BINS, range=(0, 1))
    top, width, height = max(1, int(counts.max())), 700, 180
    step = width / _BINS
    bars = "".join(
        f'<rect x="{30 + i * step:.1f}" y="{height - h:.1f}" width="{step - 2:.1f}" '
        f'height="{h:.1f}" fill="#5b8fb0"><title>{n}</title></rect>'
        for i, n in enumerate(counts)
        if (h := 160 * int(n) / top)
    )
    at = 30 + width * min(1.0, max(0.0, figures.threshold))
    return (
        f'<svg viewBox="0 0 {width + 60} {height + 40}" role="img">{bars}'
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="8" y2="{height}" stroke="#a32020" '
        f'stroke-width="2"/><text x="{at + 6:.1f}" y="18">'
        f"T = {figures.threshold:.3g}: what lies right of it was sent</text>"
        f'<text x="30" y="{height + 18}">0, sure</text>'
        f'<text x="{width + 30}" y="{height + 18}" text-anchor="end">1, unsure</text></svg>'
    )


def _bytes(f: Mapping[str, Any]) -> str:
    ours, theirs = f["bytes_per_offloaded"], f["jpeg_bytes"]
    if not ours or not theirs:
        return "<p>Nothing was sent.</p>"
    rows = [(ours, "features, header included"), (theirs, "JPEG of quality 75, same size")]
    bars = "".join(
        f'<rect x="0" y="{10 + 42 * i}" width="{max(2.0, 420 * v / max(ours, theirs)):.1f}" '
        f'height="28" fill="{colour}"/>'
        f'<text x="430" y="{29 + 42 * i}">{v:,.0f} bytes: {escape(text)}</text>'
        for i, ((v, text), colour) in enumerate(zip(rows, ("#5b8fb0", "#c9b37e"), strict=True))
    )
    ratio = f"{theirs / ours:.1f} times smaller." if ours < theirs else "No smaller than a JPEG."
    return f'<svg viewBox="0 0 760 90" role="img">{bars}</svg><p>{ratio}</p>'


def _latency(f: Mapping[str, Any]) -> str:
    names = [
        ("device", "frame to the device's answer"),
        ("roundtrip", "sent to the cloud's answer"),
    ]
    body = "".join(
        f"<tr><td>{text}</td><td class=n>{_number(f['latency_ms'][key + '_p50'], 'ms')}</td>"
        f"<td class=n>{_number(f['latency_ms'][key + '_p95'], 'ms')}</td></tr>"
        for key, text in names
    )
    return f"<table><tr><th></th><th>median</th><th>95 %</th></tr>{body}</table>"


def _photo(answer: Answer, data: bytes, figures: Figures) -> str:
    name = figures.classes[answer.truth]
    final = answer.device_label if answer.final_label is None else answer.final_label
    said = f"device: {_verdict(answer.device_label, answer, figures)}"
    if answer.offloaded:
        said += f"<br>cloud: {_verdict(final, answer, figures)}"
    image = base64.b64encode(data).decode()
    return (
        f'<div><img alt="{escape(name)}" src="data:image/jpeg;base64,{image}">'
        f"<p>{escape(name)}, entropy {answer.entropy:.2f}<br>{said}</p></div>"
    )


def _verdict(label: int, answer: Answer, figures: Figures) -> str:
    kind = "right" if label == answer.truth else "wrong"
    return f'<span class="{kind}">{escape(figures.classes[label])}</span>'


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
