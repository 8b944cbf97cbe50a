"""The shell of a report: one HTML page with its style inside, that needs no script and fetches nothing."""

from collections.abc import Iterable
from html import escape as esc

_STYLE = """
:root { --ink: #1c2330; --soft: #5d6878; --line: #dfe3ea; --page: #f4f6f9; --card: #ffffff;
  --train: #2f6fd6; --val: #d9632a; --good: 38, 125, 220; --bad: 222, 92, 40; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --soft: #9aa6b6; --line: #323b48; --page: #12161c; --card: #1b212a;
    --train: #6ba2f5; --val: #f08a52; --good: 70, 145, 235; --bad: 236, 110, 60; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 28px; line-height: 1.2; margin: 8px 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 0 0 6px; }
p { margin: 0 0 8px; }
.soft { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px 18px; margin-top: 16px; min-width: 0; }
.tiles { display: grid; gap: 12px; margin-top: 16px;
  grid-template-columns: repeat(auto-fit, minmax(158px, 1fr)); }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 23px; line-height: 1.3; font-weight: 650; white-space: nowrap; }
.tile span { color: var(--soft); font-size: 13px; display: block; }
.columns, .thirds { display: grid; gap: 20px 28px; }
.columns { grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
.thirds { grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
.columns > *, .thirds > * { min-width: 0; }
.whole-row { grid-column: 1 / -1; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .faint { stroke-width: 1; opacity: 0.4; }
.train { stroke: var(--train); }
.val { stroke: var(--val); }
circle.train { fill: var(--train); stroke: none; }
circle.val { fill: var(--val); stroke: none; }
.key { display: inline-block; margin-right: 14px; font-size: 13px; color: var(--soft); white-space: nowrap; }
.key i { display: inline-block; width: 16px; height: 3px; margin-right: 6px; vertical-align: middle; }
.key i.train { background: var(--train); }
.key i.val { background: var(--val); }
.key i.faint { opacity: 0.4; }
table { border-collapse: collapse; }
.facts { width: 100%; table-layout: fixed; }
.facts th { width: 34%; font-weight: 500; color: var(--soft); }
.facts th, .facts td { text-align: left; padding: 5px 8px 5px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
.list { width: 100%; table-layout: fixed; }
.list th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; }
.list td, .list th { padding: 3px 8px 3px 0; vertical-align: middle; overflow-wrap: anywhere; }
.list { font-size: 14px; }
.list .number { width: 62px; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.list .wide { width: 76px; }
.list .level { width: 19%; }
.bar { background: var(--line); border-radius: 3px; height: 10px; }
.bar i { display: block; height: 10px; border-radius: 3px; background: rgb(var(--good)); }
.matrix { font-size: 13px; font-variant-numeric: tabular-nums; border-collapse: separate;
  border-spacing: 1px; }
.matrix td { min-width: 36px; height: 30px; padding: 0 4px; text-align: center; border-radius: 3px; }
.matrix th { font-weight: 500; color: var(--soft); }
.matrix .row, .matrix .column span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.matrix .row { text-align: right; padding-right: 8px; max-width: 150px; }
.matrix .column span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 130px;
  padding: 4px 0; }
.matrix .zero { color: var(--soft); opacity: 0.5; }
.wrong { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(148px, 1fr)); }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; min-width: 0; }
figure div { height: 160px; display: flex; align-items: center; justify-content: center;
  background: var(--page); }
figure img { max-width: 100%; max-height: 160px; }
figure img.tiny { width: 140px; height: 140px; object-fit: contain; image-rendering: pixelated; }
figcaption { padding: 6px 9px 8px; font-size: 13px; line-height: 1.4; overflow-wrap: anywhere; }
figcaption .name { color: var(--soft); font-size: 11.5px; display: block; }
figcaption .is { color: rgb(var(--bad)); }
pre { margin: 0; font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.command { background: var(--page); border: 1px solid var(--line); border-radius: 6px; padding: 8px 10px;
  margin-bottom: 10px; }
@media (max-width: 520px) {
  .wrong { grid-template-columns: repeat(2, 1fr); }
  .card { padding: 14px 12px; } }
@media print { .card, figure { break-inside: avoid; } }
"""


def page(title: str, body: str) -> str:
    """A whole HTML document.

    Args:
        title: plain text.
        body: HTML.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{esc(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def card(title: str, body: str) -> str:
    """A framed part of the page; `title` is plain text, `body` is HTML."""
    return f'<section class="card">\n<h2>{esc(title)}</h2>\n{body}\n</section>'


def tile(value: str, label: str) -> str:
    """One headline figure with what it means below it; both plain text."""
    return f'<div class="tile"><b>{esc(value)}</b><span>{esc(label)}</span></div>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values, both plain text."""
    cells = (f"<tr><th>{esc(name)}</th><td>{esc(value)}</td></tr>" for name, value in rows)
    return f'<table class="facts">{"".join(cells)}</table>'
