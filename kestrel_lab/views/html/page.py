"""One self-contained HTML file: style inside, scripts and remote loads forbidden, light or dark as the reader prefers."""

from html import escape

from kestrel_lab.core.sanitize import plain

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #f6f8fa; --ink: #1f2328; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --line: #3d444d; --soft: #151b23; --ink: #e6edf3; --paper: #0d1117; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; } caption { text-align: left; font-weight: 600; }
th, td { border: 1px solid var(--line); padding: .25rem .6rem; vertical-align: top; } thead th { background: var(--soft); }
pre { background: var(--soft); border-radius: 6px; padding: .5rem; } code { font-family: ui-monospace, monospace; }
summary { cursor: pointer; padding: .15rem 0; } img { max-width: 100%; }
@media print { details { break-inside: avoid; } pre { max-height: none !important; } }
"""


def page(title: str, body_html: str) -> str:
    """A whole document around `body_html`, which must already be safe; a script in it would not run."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(plain(title))}</title><style>{_STYLE}</style></head>\n<body>{body_html}</body></html>\n"
    )
