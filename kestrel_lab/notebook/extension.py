"""What `%load_ext kestrel_lab` puts into a shell, and `%unload_ext` takes out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kestrel_lab.engine.run import Run
from kestrel_lab.notebook.completing import completions
from kestrel_lab.notebook.magics import KestrelMagics
from kestrel_lab.notebook.rewriting import AWAITED, MAGIC, AwaitRewriter

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.lib.pretty import RepresentationPrinter

_ATTRIBUTE = "_kestrel_extension"


@dataclass(frozen=True, slots=True)
class _Loaded:
    rewriter: AwaitRewriter
    forget: Any


def load_ipython_extension(ip: InteractiveShell) -> None:
    """Add the magics, their completion, and `await` where they stand at the top of a cell."""
    unload_ipython_extension(ip)
    magics = KestrelMagics(ip)
    ip.register_magics(magics)

    def complete(_shell: object, event: Any) -> list[str]:
        line = event.text_until_cursor
        found = completions(line, magics.lab)
        # IPython begins a word behind a colon or a comma, where ours goes on.
        word = "" if line[-1:].isspace() else line.split()[-1]
        return [text[len(word) - len(event.symbol) :] for text in found]

    for prefix in ("%", "%%"):
        ip.set_hook("complete_command", complete, str_key=f"{prefix}{MAGIC}")  # type: ignore[no-untyped-call]
    _show_once(ip, magics)

    def forget(*_: object) -> None:
        magics.shown.clear()

    rewriter = AwaitRewriter(ip)
    rewriter.install()
    ip.events.register("post_run_cell", forget)
    setattr(ip, _ATTRIBUTE, _Loaded(rewriter, forget))


def unload_ipython_extension(ip: InteractiveShell) -> None:
    """Remove everything again; does nothing where nothing is loaded."""
    loaded: _Loaded | None = getattr(ip, _ATTRIBUTE, None)
    if loaded is None:
        return
    delattr(ip, _ATTRIBUTE)
    loaded.rewriter.remove()
    ip.events.unregister("post_run_cell", loaded.forget)
    for name in (MAGIC, AWAITED):
        for kind in ("line", "cell"):
            ip.magics_manager.magics[kind].pop(name, None)
    for mime in ("text/html", "text/plain"):
        _formatters(ip)[mime].pop(Run, None)


def _show_once(ip: InteractiveShell, magics: KestrelMagics) -> None:
    """A run that its cell has shown already is one line as the cell's result."""

    def as_html(run: Run) -> str | None:
        return None if run in magics.shown else run._repr_html_()

    def as_text(run: Run, printer: RepresentationPrinter, _cycle: bool) -> None:
        printer.text(str(run) if run in magics.shown else repr(run))  # type: ignore[no-untyped-call]

    formatters = _formatters(ip)
    formatters["text/html"].for_type(Run, as_html)
    formatters["text/plain"].for_type(Run, as_text)


def _formatters(ip: InteractiveShell) -> dict[str, Any]:
    assert ip.display_formatter is not None
    formatters: dict[str, Any] = ip.display_formatter.formatters
    return formatters
