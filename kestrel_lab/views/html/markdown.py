"""Markdown as safe HTML: what a model writes, with tables, code, formulas and marks on claims, and nothing in
it that loads or runs.

HTML in the text is shown as text. What comes out has passed nh3, which keeps only the elements that are named
here: no image, no script, no style sheet, and links only to web and mail addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.language.numbers import NUMBER
from kestrel_lab.views.formatting import CODE_ARGS
from kestrel_lab.views.rows import Change, TextRow

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

    from kestrel_lab.views.run_view import RunView


_LONGEST: Final = 200_000
"""Characters of a text that is rendered; a longer one is shown as it is written."""
_WEB: Final = ("https://", "http://", "mailto:")
"""How the address of a link begins."""

# Colours of JupyterLab's editor, with ones for pages without it that can be read on light and on dark paper.
_COLOURS: Final = {
    "keyword": "var(--jp-mirror-editor-keyword-color,#8250df)",
    "string": "var(--jp-mirror-editor-string-color,#c0392b)",
    "number": "var(--jp-mirror-editor-number-color,#2e8540)",
    "comment": "var(--jp-mirror-editor-comment-color,#7a8a8a)",
    "name": "var(--jp-mirror-editor-def-color,#2f7fd6)",
}
STATES: Final = {
    "cited": "1px solid rgba(127,127,127,.95)",
    "uncited": "1px dotted rgba(127,127,127,.7)",
    "unknown": "2px dotted rgba(127,127,127,.95)",
    "changed": "2px dashed rgba(210,153,34,.95)",
    "wrong": "3px double rgba(248,81,73,.95)",
}
"""Line under a claim in each state: its form says the same as its colour. That a place exists proves nothing:
it has no colour.
"""
_MARKS: Final = {"kst-formula", "kst-claim", *(f"kst-{name}" for name in (*_COLOURS, *STATES))}
_VOID: Final = frozenset({"br", "hr"})
_MATHML: Final = frozenset(
    (
        "math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover "
        "mtable mtr mtd mstyle mpadded mphantom "
        "menclose"
    ).split()
)
_MATHML_ATTRIBUTES: Final = frozenset(
    (
        "xmlns display stretchy fence form separator lspace rspace linethickness mathvariant "
        "columnalign rowspacing columnspacing width "
        "height depth linebreak displaystyle scriptlevel minsize maxsize accent movablelimits notation "
        "symmetric largeop"
    ).split()
)
_TAGS: Final = frozenset(
    [
        "a",
        "blockquote",
        "br",
        "code",
        "em",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "li",
        "ol",
        "p",
        "pre",
        "s",
        "span",
        "strong",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
        "div",
    ]
)


def markdown_html(
    text: str, *, styled: bool = False, claims: Sequence[Json] = (), numbers: Mapping[str, str] = {}
) -> str:
    """Return `text` as HTML that is safe to show.

    `styled` gives highlighted code and claims their colours in place, for pages without our style sheet.
    `claims` are those of `TextRow`, which are underlined by their state; `numbers` are addresses within the
    page of numbers as they are written.
    """
    # A terminal needs none of the HTML libraries.
    import nh3

    if len(text) > _LONGEST:
        return f"<pre>{escape(text)}</pre>"
    styles = {"style"} if styled else set[str]()
    parser, text = _parser(styled), sanitize_text(text)
    tokens = (
        marked_tokens(parser, text, claims, numbers, styled=styled)
        if claims or numbers
        else parser.parse(text)
    )
    clean: str = nh3.clean(
        parser.renderer.render(tokens, parser.options, {}),
        tags=set(_TAGS | _MATHML),
        clean_content_tags=set(),
        attributes={
            "a": {"href", "title", "target"},
            "span": styles | {"data-shown", "tabindex", "role", "aria-description"},
            "td": {"align"},
            "th": {"align"},
            "ol": {"start"},
            "pre": {"data-language"} | styles,
            "code": styles,
            **{name: set(_MATHML_ATTRIBUTES) for name in _MATHML},
        },
        allowed_classes={"span": _MARKS, "code": {"kst-formula"}, "a": {"kst-number-from"}},
        filter_style_properties={
            "border-bottom",
            "color",
            "background",
            "padding",
            "border-radius",
            "overflow-x",
        },
        url_schemes={"http", "https", "mailto"},
        # A page that a model links to must not learn where its reader came from.
        link_rel="noopener noreferrer nofollow",
    )
    # Once more: a character reference can stand for a hidden character.
    return sanitize_text(clean)


def markdown_nodes(text: str) -> list[Json]:
    """Return Markdown as what a page builds elements of without ever parsing HTML: texts, and lists of a tag,
    the address of a link or "", and what is inside. Formulas are texts.
    """
    reader = _Nodes()
    reader.feed(markdown_html(text))
    reader.close()
    return reader.top


class _Nodes(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.top: list[Json] = []
        self._open: list[list[Json]] = [self.top]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS:
            return
        address = dict(attrs).get("href") or ""
        node: list[Json] = [tag, address if address.startswith(_WEB) else ""]
        self._open[-1].append(node)
        if tag not in _VOID:
            self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        if tag in _TAGS and tag not in _VOID and len(self._open) > 1:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].append(data)


def code_html(language: str, code: str, *, styled: bool = False) -> str:
    """Return code as a block with its lines and colours, safe to show."""
    # Longer than any fence within.
    fence = "`" * (3 + max(map(len, re.findall("`+", code)), default=0))
    return markdown_html(f"{fence}{language}\n{code}\n{fence}", styled=styled)


def row_id(run: str, row: str) -> str:
    """Return the `id` of the element that shows a row of a run."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", f"kst-{run}-{row}")


def number_links(run: str, row: TextRow) -> dict[str, str]:
    """Return the addresses within the page of the calls that gave the numbers of an answer."""
    return {said: f"#{row_id(run, str(call))}" for said, call in row.numbers.items()}


class GrowingText:
    """Renders a text that grows: the blocks that are complete once, the last one again each time."""

    def __init__(self) -> None:
        self._settled = 0

    def grown(self, text: str) -> tuple[str, str]:
        """Return the HTML of the blocks that were completed since the last time, and of the one that `text`
        ends with.

        A later part can change what an earlier one means (the address of a link by its name): the whole text
        is to be rendered again at its end.
        """
        rest = text[self._settled :]
        # The last block of a growing text is rendered again with each piece, which is quadratic in its
        # length.
        if len(rest) > 20_000:
            return "", f"<pre>{escape(rest)}</pre>"
        starts = [
            token.map[0]
            for token in _parser(False).parse(rest)
            if token.level == 0 and token.map and token.nesting >= 0
        ]
        lines = rest.split("\n")
        # The next piece may go on with the last block, so it is never complete.
        complete = sum(len(line) + 1 for line in lines[: starts[-1]]) if starts else 0
        self._settled += complete
        return markdown_html(rest[:complete]) if complete else "", markdown_html(rest[complete:])


class RenderedChanges:
    """Adds the HTML of texts to the changes of a view: `html`; of a growing text `settled` and `tail`."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._growing: dict[str, GrowingText] = {}

    def of(self, changes: Sequence[Change]) -> list[Change]:
        """Return `changes` with HTML beside each text; call with every change of the view, in order."""
        return [self._rendered(change) for change in changes]

    def _rendered(self, change: Change) -> Change:
        name = str(change.get("id"))
        if change["op"] == "text" and "append" in change:
            grown = cast("TextRow", self._view.rows[name]).text
            settled, tail = self._growing.setdefault(name, GrowingText()).grown(grown)
            return {**change, "settled": settled, "tail": tail}
        if change["op"] == "ask" and change.get("args"):
            pairs = cast("list[list[str]]", change["args"])
            codes = {arg: code_html(CODE_ARGS[arg], text) for arg, text in pairs if arg in CODE_ARGS}
            return {**change, "codes": cast("Json", codes)}
        if change.get("code"):
            language, code = cast("list[str]", change["code"])
            return {**change, "code_html": code_html(language, code)}
        if change["op"] != "row" or not isinstance(row := self._view.rows.get(name), TextRow):
            return change
        if {"text", "claims", "numbers"} & change.keys() or change.get("state") == "done":
            self._growing.pop(name, None)
            # Pieces follow, which say what is complete.
            if row.state == "streaming":
                settled, tail = self._growing.setdefault(name, GrowingText()).grown(row.text)
                return {**change, "html": "", "settled": settled, "tail": tail}
            numbers = number_links(self._view.head.run, row)
            return {**change, "html": markdown_html(row.text, claims=row.claims, numbers=numbers)}
        return change


@cache
def _parser(styled: bool) -> MarkdownIt:
    # It is large and rarely needed, so it is loaded on use.
    from markdown_it import MarkdownIt
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.texmath import texmath_plugin

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    parser.use(texmath_plugin, delimiters="brackets")
    parser.use(
        dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, double_inline=True
    )
    code = _styled_code if styled else _code
    rules = {"image": _image, "fence": code, "code_block": code} | dict.fromkeys(
        ("math_inline", "math_inline_double", "math_block", "math_block_eqno"), _formula
    )
    for name, of_token in rules.items():
        parser.add_render_rule(name, _rule(of_token))
    for name in ("heading_open", "heading_close", "th_open", "td_open", "link_open"):
        parser.add_render_rule(name, _adapt_token)
    return parser


def _rule(of_token: Callable[[Token], str]) -> Callable[..., str]:
    """Return a rule of markdown-it that renders a token by itself."""

    # `add_render_rule` binds it to the renderer, as a method: a `partial` would not get that argument.
    def render(_renderer: Any, tokens: Sequence[Token], place: int, *_: Any) -> str:
        return of_token(tokens[place])

    return render


def _adapt_token(renderer: Any, tokens: Any, place: int, options: Any, _env: Any) -> str:
    """Render headings two levels lower, cells without style, and links that open beside the page."""
    token = tokens[place]
    if token.type.startswith("heading"):
        return f"<{'/' if token.nesting < 0 else ''}h{min(6, int(token.tag[1]) + 2)}>"
    if token.type == "link_open":
        # An address without a scheme leads into the server that shows the page.
        if not (address := str(token.attrs.pop("href", ""))).startswith(_WEB):
            return ""
        token.attrs.update({"href": address, "title": address, "target": "_blank"})
    elif (style := token.attrs.pop("style", "")) and isinstance(style, str):
        token.attrSet("align", style.removeprefix("text-align:"))
    rendered: str = renderer.renderToken(tokens, place, options, {})
    return rendered


def _image(token: Token) -> str:
    """Render an image as a link: loading it would tell its server that the text was read."""
    address, label = str(token.attrGet("src") or ""), escape(token.content)
    if not address.startswith(_WEB):
        return f"image: {label or escape(address)}"
    return (
        f'<a href="{escape(address)}" title="{escape(address)}" target="_blank">image: '
        f"{label or escape(address)}</a>"
    )


def _formula(token: Token) -> str:
    block = token.type != "math_inline"
    found = _mathml(token.content.strip(), block)
    shown = found or f'<code class="kst-formula">{escape(token.content)}</code>'
    return f"<p>{shown}</p>" if token.block else shown


def _mathml(source: str, block: bool) -> str:
    """Return a formula as MathML, which browsers draw; empty if it is not understood or holds other HTML."""
    # Only for a text with a formula: trials, which draw nothing, import this module, too.
    from xml.etree.ElementTree import fromstring

    from latex2mathml.converter import Converter

    # Macros may grow without end.
    if len(source) > 2_000 or "\\def" in source or "newcommand" in source:
        return ""
    try:
        html = Converter(display="block" if block else "inline").convert(source)
        root = fromstring(html)  # made by the converter; it has no doctype, so no entities  # noqa: S314
    except Exception:  # a formula that the converter does not know is shown as it is written  # noqa: BLE001
        return ""
    known = all(
        node.tag.rpartition("}")[2] in _MATHML and set(node.attrib) <= _MATHML_ATTRIBUTES
        for node in root.iter()
    )
    return html if known and "<!" not in html else ""


def _code(token: Token) -> str:
    return _highlight_code(token, lambda name, text: f'<span class="kst-{name}">{escape(text)}</span>')


def _styled_code(token: Token) -> str:
    code = _highlight_code(
        token, lambda name, text: f'<span style="color:{_COLOURS[name]}">{escape(text)}</span>'
    )
    return code.replace("<code>", '<code style="background:none">', 1).replace(
        "<pre ",
        '<pre style="background:rgba(127,127,127,.12);padding:8px 10px;border-radius:4px;overflow-x:auto" ',
        1,
    )


def _highlight_code(token: Any, span: Any) -> str:
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, Keyword, Name, Number, Operator, String
    from pygments.util import ClassNotFound

    kinds = (
        (Keyword, "keyword"),
        (Operator.Word, "keyword"),
        (String, "string"),
        (Number, "number"),
        (Comment, "comment"),
    )
    named = (Name.Function, Name.Class, Name.Decorator, Name.Builtin, Name.Tag)
    language = (token.info or "").strip().split(" ")[0]
    try:
        pieces = (
            get_lexer_by_name(language, stripnl=False, ensurenl=False).get_tokens(token.content)
            if language
            else [(None, token.content)]
        )
    except ClassNotFound:
        # A language that Pygments does not know is shown without colours.
        pieces = [(None, token.content)]

    def shown(kind: Any, text: str) -> str:
        name = (
            next(
                (name for base, name in kinds if kind in base),
                "name" if any(kind in base for base in named) else "",
            )
            if kind
            else ""
        )
        return span(name, text) if name and text.strip() else escape(text)

    body = "".join(shown(kind, text) for kind, text in pieces)
    return f'<pre data-language="{escape(language)}"><code>{body}</code></pre>\n'


Claim = tuple[int, int, str, str]
_SIGNS: Final = ("⸨⸩", "⦅⦆", "⟬⟭", "⧘⧙")
"""Marks of claims while the text is parsed; punctuation, so that emphasis beside them works."""


# Marks: claims underlined by the state of their evidence, numbers linked to the call that gave them.


def marked_tokens(
    parser: MarkdownIt, text: str, claims: Sequence[Json], numbers: Mapping[str, str], *, styled: bool
) -> list[Token]:
    """Return the tokens of `text` in which claims are spans and numbers are links.

    `claims` are start, end, state and evidence in words, in order; a claim whose marks would change what the
    Markdown means has none. `numbers` are the addresses of numbers as they are written.
    """
    plain = parser.parse(text)
    signs = next((pair for pair in _SIGNS if not set(pair) & set(text)), "")
    placed = (
        [(one, *_inside_cells(text, one[0], one[1])) for one in cast("Sequence[Claim]", claims)]
        if signs
        else []
    )
    shape, tokens = [*_shape(plain, "")], plain
    if placed:
        tokens = parser.parse(_insert_signs(text, placed, signs))
        if [*_shape(tokens, signs)] != shape:
            placed = [
                one
                for one in placed
                if [*_shape(parser.parse(_insert_signs(text, [one], signs)), signs)] == shape
            ]
            tokens = parser.parse(_insert_signs(text, placed, signs))
            if [*_shape(tokens, signs)] != shape:
                placed, tokens = [], plain
    marker = _Marker([one for one, _, _ in placed], numbers, signs, styled=styled)
    for token in tokens:
        if token.type == "inline" and token.children:
            token.children = marker.marked(token.children)
    return tokens


def _inside_cells(text: str, start: int, end: int) -> tuple[int, int]:
    """The place of a claim without the bars of a row of a table, which stand around its cells."""
    if text[start : start + 1] == "|":
        start += len(text[start:end]) - len(text[start:end].lstrip("| "))
        end -= len(text[start:end]) - len(text[start:end].rstrip("| "))
    return start, end


def _insert_signs(text: str, placed: Sequence[tuple[Claim, int, int]], signs: str) -> str:
    parts, at = [], 0
    for _, start, end in placed:
        parts += [text[at:start], signs[0], text[start:end], signs[1]]
        at = end
    return "".join([*parts, text[at:]])


def _shape(tokens: Sequence[Token], signs: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield what the rendering of tokens depends on, without the signs."""
    for token in tokens:
        content = "" if token.type == "inline" else token.content.translate(dict.fromkeys(map(ord, signs)))
        # A sign alone is a text of its own before code.
        if content or token.type != "text":
            yield token.type, token.tag, content, str(token.attrs)
        yield from _shape(token.children or (), signs)


class _Marker:
    """Marks inline tokens, block after block: a claim may go on in the next cell of its row."""

    def __init__(
        self, claims: Sequence[Claim], numbers: Mapping[str, str], signs: str, *, styled: bool
    ) -> None:
        self._claims, self._numbers, self._styled = iter(claims), numbers, styled
        self._signs = re.compile(f"([{signs}])") if signs else None
        self._begin = signs[:1]
        self._claim: Claim | None = None
        self._first = False

    def marked(self, children: Sequence[Token]) -> list[Token]:
        """Return the children of an inline token with their marks."""
        out: list[Token] = []
        start, linked = 0, 0
        for token in self._pieces(children):
            if isinstance(token, str):
                if token == self._begin:
                    self._claim, self._first, start = next(self._claims), True, len(out)
                else:
                    out[start:] = self._spanned(out[start:])
                    self._claim = None
                continue
            linked += token.nesting if token.tag == "a" else 0
            out += self._with_links(token) if token.type == "text" and not linked else [token]
        if self._claim is not None:
            out[start:] = self._spanned(out[start:])
        return out

    def _pieces(self, children: Sequence[Token]) -> Iterator[Token | str]:
        for token in children:
            if self._signs is None or not self._signs.search(token.content):
                yield token
            elif token.type != "text":  # the signs in code change nothing but its text
                signs = self._signs.findall(token.content)
                yield from (sign for sign in signs if sign == self._begin)
                yield token.copy(content=self._signs.sub("", token.content))
                yield from (sign for sign in signs if sign != self._begin)
            else:
                for part in self._signs.split(token.content):
                    if part and self._signs.fullmatch(part):
                        yield part
                    elif part:
                        yield token.copy(content=part)

    def _spanned(self, tokens: list[Token]) -> list[Token]:
        """Return the tokens of a claim in a span; if it cuts elements, each text gets a span of its own."""
        depth = [0]
        for token in tokens:
            depth.append(depth[-1] + token.nesting)
        if not any(token.content.strip() for token in tokens):
            return tokens
        if depth[-1] == 0 and min(depth) == 0:
            return [self._open(), *tokens, _token("span_close", "span", -1)]
        return [
            part
            for token in tokens
            for part in (
                [self._open(), token, _token("span_close", "span", -1)]
                if token.nesting == 0 and token.content.strip()
                else [token]
            )
        ]

    def _open(self) -> Token:
        _, _, state, label = self._claim or (0, 0, "uncited", "")
        attrs = {"class": f"kst-claim kst-{state}"}
        if self._styled:
            attrs["style"] = f"border-bottom:{STATES[state]}"
        if label:
            attrs["data-shown"] = label
        # One stop for the keyboard, one description for who listens.
        if label and self._first:
            attrs |= {"tabindex": "0", "role": "mark", "aria-description": label}
            self._first = False
        return _token("span_open", "span", 1, attrs)

    def _with_links(self, token: Token) -> Iterator[Token]:
        at = 0
        for match in NUMBER.finditer(token.content) if self._numbers else ():
            if (address := self._numbers.get(match[0])) is None:
                continue
            yield token.copy(content=token.content[at : match.start()])
            yield _token(
                "number_open",
                "a",
                1,
                {"href": address, "class": "kst-number-from", "title": "show the call that gave this number"},
            )
            yield token.copy(content=match[0])
            yield _token("number_close", "a", -1)
            at = match.end()
        yield token.copy(content=token.content[at:])


def _token(kind: str, tag: str, nesting: Any, attrs: Mapping[str, str] | None = None) -> Token:
    from markdown_it.token import Token

    return Token(kind, tag, nesting, attrs=dict(attrs or {}))
