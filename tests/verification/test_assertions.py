"""What an answer asserts about the workspace and what it does not, and that only the former can refuse it."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import natural_answers as natural
from bench.answer_files import judged, report
from bench.heldout_answers import placed
from kestrel_lab.language.python_ast import tree_of
from kestrel_lab.verification.code.bindings import UNKNOWN, bindings, folded, literal
from kestrel_lab.verification.engine import VerifierEngine
from kestrel_lab.verification.issues import refused
from kestrel_lab.verification.prose.stance import stance
from kestrel_lab.verification.rules.text_match import changed_in, coded_in, nearly_in, quoted_in
from kestrel_lab.verification.subject import Ground, Subject


def root(package: str) -> Path | None:
    """Where an installed package is."""
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec is not None and spec.submodule_search_locations else None


@pytest.mark.parametrize(
    ("sentence", "how"),
    [
        ("`thing` is called first.", "asserted"),
        ("To create a session, use `thing`.", "asserted"),
        ("If you need that, call `thing`.", "asserted"),
        ("Without arguments it raises, see `thing`.", "asserted"),
        ("There is no `thing`.", "denied"),
        ("It has neither a cache nor `thing`.", "denied"),
        ("`thing()` doesn't exist.", "denied"),
        ("`thing` was removed.", "denied"),
        ("It does not retry, but `thing` does.", "asserted"),
        ("Eine Funktion `thing` gibt es nicht.", "denied"),
        ("Non esiste una funzione `thing`.", "denied"),
        ("La fonction `thing` n'existe pas.", "denied"),
        ("No hay ningún `thing`.", "denied"),
        ("Der Fehler kommt aus `thing`.", "asserted"),
        ("Create `thing` for it.", "to be made"),
        ("I'd add a small helper `thing` here.", "to be made"),
        ("Lege eine Datei `thing` an.", "to be made"),
        ("`thing` is a function you write.", "to be made"),
        ("`thing` is set from a new argument.", "to be made"),
        ("You could write it as `thing`.", "to be made"),
        ("It would look like `thing`.", "supposed"),
        ("Set a variable such as `thing`.", "supposed"),
        ("Funkcja jest wywoływana przez inny moduł jeszcze raz później `thing`.", "supposed"),
    ],
)
def test_the_clause_says_how_it_stands_to_a_name(sentence: str, how: str) -> None:
    """A clause asserts that something is there, denies it, proposes it or supposes it; the last word before the name counts."""
    start = sentence.index("thing")
    assert stance(sentence, start, start + 5) == how


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """A small workspace."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop").mkdir()
    (folder / "shop" / "cart.py").write_text(
        '"""The cart."""\n\nfrom threading import Thread\n\nSIZE = 2**15\nDEFAULTS = {"page.size": 20}\n\n\nclass Base:\n    """All of them."""\n\n    kind: str = "base"\n\n\nclass Cart(Base):\n    """Holds items."""\n\n'
        '    def add(self, item: str, times: int = 3, *, dry: bool = False) -> list[str]:\n        """Put an item in, as often as is said."""\n        if times > 25:\n'
        '            raise ValueError(f"too many items at once: {times} of {item}")\n        self.items = [item] * times\n        return self.items[-1:]\n'
    )
    with (folder / "shop" / "cart.py").open("a") as file:
        file.write(
            '\n\nclass Worker(Thread):\n    def __init__(self, limit: int = 20) -> None:\n        self.limit = limit\n\n\ndef add_all(item: str, times: int = 1) -> None:\n    """Put all in, see :class:`~shop.cart.Cart`."""\n'
            '    raise KeyError(\n        f"no {item!r} left,"\n        " and as such nothing"  # yet\n        " can be added to it. Come back."\n    )\n    log("the limit was set by " + user.name + " to %d pieces" % times)\n'
        )
    (folder / "shop" / "__main__.py").write_text(
        'import argparse\n\nparser = argparse.ArgumentParser(prog="shopfront")\nparser.add_argument("--bind")\nparser.add_argument("--color")\n\n'
    )
    (folder / "shop" / "told.py").write_text(
        '# SQLite prior to 3.24.0 cannot do that.\n\n\n# Above 70 items the cart stays closed.\nTOLD = """Nothing was done within {} seconds!\n\nAsked for: {!r}\n"""\n\n\ndef kept(**more):\n    return "cart_" + str(more.pop("weight", 40))\n'
    )
    return Ground(folder)


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        ("`Cart.add` has `times=4` by default.", "values_hold"),
        ("By default `Cart.add` has `times=3`.", ""),
        ("Call it with `times=4`.", ""),
        ("`SIZE` is 32768 (shop/cart.py:5), i.e. 32 KiB.", ""),
        ("`SIZE` is 32767.", "values_hold"),
        ('`"page.size": 50` in `DEFAULTS`.', "values_hold"),
        ("`dry` of `Cart.add` is `False` by default.", ""),
        ("| parameter | default |\n|---|---|\n| `times` | 5 |", "values_hold"),
        ("| parameter | default |\n|---|---|\n| `times` | 3 |", ""),
        ("`Cart` is a subclass of `Base`.", ""),
        ("`Base` is a subclass of `Cart`.", "bases_hold"),
        ("It is `class Base(Cart)`.", "bases_hold"),
        ('Call `Cart().add("x", often=3)`; it is `Cart.add("x", often=3)`.', "calls_fit"),
        ('Call `Cart.add("x", times=5)`.', ""),
        ("You could give `add` a parameter: `Cart.add(often=3)`.", ""),
        ("These are in `shop/cart.py`:\n\n- `Cart`\n- `Base`\n- `basket`\n", "lists_hold"),
        ('It raises `ValueError`: "too many items at once: 30 of tea".', ""),
        ('It raises `ValueError("too many things at one time")`.', "quotes_are_exact"),
        ("The method is `return self.items[-2:]`.", "quotes_are_exact"),
        ("The method is `return items[-1:]`.", ""),
        (
            "From `shop/cart.py`:\n\n```python\nif times > 35:\n    raise ValueError(...)\nself.items = [item] * times\n```",
            "quotes_are_exact",
        ),
        ("From `shop/cart.py`:\n\n```python\nif times > 25:\n    raise ValueError(...)  # shortened\nself.items = [item] * times\n```", ""),
        ("You could change `shop/cart.py`:\n\n```python\nif times > 35:\n    raise ValueError(...)\nself.items = [item] * times\n```", ""),
        ("Run `python -m shop --port 80`.", "commands_are_there"),
        ("Run `python -m shop --bind 80`.", ""),
        ("In Django you'd use `get_object_or_404`; Flask has `send_from_directory`.", ""),
        ("```python\nclass BigCart(Cart):\n    pass\n```\n\n`BigCart` then holds more.", ""),
        ("`read_basket_of` holds more.", "names_resolve"),
        ("Put it in your `mkdocs.yml`; `index.html` is served.", ""),
        ("Behind it runs `gunicorn app:app`.", ""),
        ("`Cart` steht in Zeile 15 von `shop/cart.py`.", ""),
        ("`shop/cart.py` endet in Zeile 900.", "lines_hold"),
        ("The 304 logic is in `Cart.add`.", ""),
        ("| method | use |\n|---|---|\n| `add(item, times=9)` | adds |", ""),
        ("`add_all(item, often=9)` adds.", "calls_fit"),
        ('```python\n>>> add_all("tea", often=True)\n```', "calls_fit"),
        ('```python\nfrom elsewhere import add_all\n\nadd_all("tea", often=True)\n```', ""),
        ("`Worker.pause()` waits.", "names_resolve"),
        ("`Worker.join()` waits.", ""),
        ("In `shop/cart.py`:\n\n- `limit = 20`\n- `SIZE = 2**15`", ""),
        ("In `shop/cart.py`:\n\n- `limit = 30`", "values_hold"),
        ("`Worker.limit = 30` lifts that.", ""),
        ("From `shop/__main__.py`:\n\n- `--bind`\n- `--color` (default no)\n- `--json_output`", "lists_hold"),
        ("From `shop/__main__.py`:\n\n- `--bind`\n- `--color`", ""),
        ("`wc -l shop/__main__.py` says 6 lines.", ""),
        ("`wc -l shop/__main__.py` says 9 lines.", "counts_are_right"),
        ("The entry point is `shop.cart:run_all`.", "names_resolve"),
        ("The entry point is `shop.cart:add_all`.", ""),
        ("Run `shopfront --bind 80`.", ""),
        ("Run `shopfront --dialect x`.", "commands_are_there"),
        ("Run `shopctl --bind 80`.", "commands_are_there"),
        ("```bash\ncomplete -F _shop shop\nmapfile -t lines < shop/cart.py\nvulture shop/cart.py\n```", ""),
        ("When it is run, `left_margin < 10` is refused, and `size in (1, 2)` is not.", ""),
        ("```python\nfrom multiprocessing import Pool, RLock\nfrom itertools import batched\n```", ""),
        ("```python\nfrom shop.cart import Basket\n```", "imports_resolve"),
        ('The message reads "no 42 left, and as such nothing can be added to it".', ""),
        ('The message reads "no 42 left, and as such nothing can be removed from it".', "quotes_are_exact"),
        ('It raises "the limit was set by Anna Lee to 20 pieces".', ""),
        ('The docstring says "Put all in, see Cart.".', ""),
        ('It fails with "Connection refused", or "No module named \'shop.till\'".', ""),
        ("`fmt -o out.txt x.py` formats a file of yours.", ""),
        ("It is in `x.py`.", "files_exist"),
        ("`send_all` is yours.", ""),
        ('RFC 9110 says "a client must not send it twice".', ""),
        ('The docstring says "a client must not send it twice".', "quotes_are_exact"),
        ("The signature is `Cart.add(self, item, times=9, *, dry=False)`.", "values_hold"),
        ("The signature is `Cart.add(self, item: str, times: int = 3, *, dry: bool = False)`.", ""),
        ("Its signature in `shop/cart.py` is `__init__(self, limit=30)`.", "values_hold"),
        ('It prints "Nothing was done within 30 seconds!" and what was asked for.', ""),
        ('It prints "Nothing was kept within 30 seconds!" and what was asked for.', "quotes_are_exact"),
        ("The loop begins so:\n\n```python\nfor item in items:\n    try:\n        add(item)\n```", ""),
        ("The loop begins so:\n\n```python\nfor item in items:\n    add(item\n```", "blocks_parse"),
        ("It needs SQLite 3.24 or newer.", ""),
        ("Proposed test, e.g. in `tests/shop/test_sizes.py`: add it.", ""),
        ("Set the environment variable `SHOP_RETRIES` for it.", "names_resolve"),
        ("See notes.txt for more.", "files_exist"),
        ("`SIZE` in `shop/cart.py` is 300.", "values_hold"),
        ("`SIZE` in `shop/cart.py` is 32768.", ""),
        ("`times` of `Cart.add` is 4 by default.", "values_hold"),
        ("| class | items | where |\n|---|---|---|\n| `Cart` | `times=3` | `shop/cart.py:20` |", ""),
        ("You could wrap it in a module of your own, with a function `add_or_wait(item, seconds)`.", ""),
        ("The carts are called `cart_1`, `cart_2` and so on.", ""),
        ("It is called `till_1`.", "names_resolve"),
        ("Its class is `BigCart2`, its function `add_all_3`.", "names_resolve"),
        ("`shop` is explained in `shop/told.py`.", ""),
        ("| option | default |\n|---|---|\n| `weight` | `40` |", ""),
        ("| option | default |\n|---|---|\n| `weight` | `60` |", "values_hold"),
        ("Above 90 items the cart is closed [shop/told.py:4].", "numbers_are_there"),
        ("Above 70 items the cart is closed [shop/told.py:4].", ""),
        ("The cart, with about 90 items, is closed [shop/told.py:4].", ""),
        ("Put it into notes.txt.", ""),
    ],
)
def test_only_what_is_asserted_and_certain_refuses(shop: Ground, answer: str, check: str) -> None:
    """An altered value, base, call, quote or option refuses an answer; a proposal, an example or another library does not."""
    assert {one.check for one in VerifierEngine()(Subject(answer=answer, ground=shop, calls=())) if one.refuses} == (
        {check} if check else set()
    )


def defaults(package: str) -> Iterator[tuple[str, str, object]]:
    """Functions of a package with a parameter that has the same plain default wherever a function is called so."""
    folder = root(package)
    for path in sorted(folder.rglob("*.py")) if folder else ():
        for node in ast.walk(tree_of(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                for argument, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
                    if value is not None and isinstance(found := folded(value), int) and found not in (0, 1):
                        yield node.name, argument.arg, found


@pytest.mark.parametrize("package", ["stamina", "rich", "anyio", "httpx"])
def test_every_default_of_a_real_package_may_be_said_and_no_other(package: str) -> None:
    """What a package's own text gives as a default refuses nothing; the same sentence with another number is refused."""
    if (folder := root(package)) is None:
        pytest.skip(f"{package} is not installed")
    ground, engine = Ground(folder), VerifierEngine()
    every = list(defaults(package))[:12]
    alone = [one for one in every if len({value for name, argument, value in every if (name, argument) == one[:2]}) == 1]
    for name, argument, value in alone:
        for text in (
            f"In `{name}` the parameter `{argument}` defaults to {value}.",
            f"`{argument}` (default: `{value}`) belongs to `{name}`.",
        ):
            assert not refused(engine(Subject(answer=text, ground=ground))), text
            assert refused(engine(Subject(answer=text.replace(str(value), "98127"), ground=ground))), text


@given(
    words=st.lists(
        st.sampled_from(["the", "cart", "holds", "many", "items", "until", "someone", "takes", "them", "out", "again"]),
        min_size=6,
        max_size=12,
    ),
    at=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_a_quote_is_found_as_it_is_and_as_changed_with_another_word(words: list[str], at: int) -> None:
    """However it is broken and marked up, a quote is found; with one word replaced it is not, but as a changed one."""
    text = "before # " + " ".join(words[:3]) + "\n    # " + " ".join(words[3:]) + ".\nafter"
    assert quoted_in(f"**{' '.join(words).capitalize()}**", [text])
    other = [*words[:at], "zebra", *words[at + 1 :]]
    assert not quoted_in(" ".join(other), [text])
    assert nearly_in(" ".join(other), [text])


def test_code_is_compared_by_tokens() -> None:
    """Line breaks, `self.`, kinds of quotation marks and elisions are no change; another value is, another name alone is none."""
    text = "def f(self, x):\n    if self.limit > 10 and x['a'] == 'b':\n        return self.g(\n            x, 3\n        )\n"
    assert coded_in('if limit > 10 and x["a"] == "b"', [text])
    assert coded_in("return self.g(x, 3)", [text])
    assert coded_in("if self.limit > 10 ... return self.g(x, 3)", [text])
    assert changed_in("if limit > 11 and x['a'] == 'b'", [text])
    assert changed_in("if bound > 10 and x['a'] == 'b'", [text], known=frozenset({"bound"})) == ""
    assert changed_in("if bound > 10 and x['a'] == 'b'", [text])


def test_bindings_are_plain_values_or_unknown() -> None:
    """Products and powers are worked out, what only running would tell is unknown, and YAML is read like the rest."""
    found = bindings("A = 2**10\nB = f()\ndef g(c=-1.5, *, d='x'): ...\nC = {'k': 60 * 60}\n", "a.py")
    assert {name: found[name][0].value for name in "ABcdk"} == {"A": 1024, "B": UNKNOWN, "c": -1.5, "d": "x", "k": 3600}
    assert found["k"][0].owners == ("C",)
    assert bindings("a: true\nb: name\n", "a.yml")["a"][0].value is True
    assert literal("10 ** 10 ** 10") is UNKNOWN


def test_answers_as_a_chat_model_writes_them() -> None:
    """Of answers in many styles no true one is refused, and those made up that pass are of kinds that cannot be seen."""
    engine, grounds = VerifierEngine(), {}
    for true, false, invisible in ((natural.TRUE, natural.FALSE, 3), (natural.LATER_TRUE, natural.LATER_FALSE, 0)):
        wrong, passed, count = [], 0, 0
        for package, _, text in (*true, *false):
            if (folder := root(package)) is None:
                continue
            ground = grounds.setdefault(package, Ground(folder))
            no = refused(engine(Subject(answer=placed(text, folder), ground=ground)))
            made_up = (package, _, text) in false
            wrong += [text] * (no and not made_up)
            passed, count = passed + (made_up and not no), count + made_up
        assert wrong == []
        assert passed <= invisible, f"{passed} of {count}"


def test_answers_of_a_file_are_judged_with_what_was_read_and_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of answers is judged as runs are, wrong verdicts are shown, and a true answer refused fails the measurement."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.py").write_text("LIMIT = 3\n")
    said = {
        "workspace": "w",
        "question": "?",
        "read": ["a.py"],
        "commands": [{"command": "wc -l a.py", "output": "1\n"}],
        "style": "short",
        "what": "",
    }
    rows = [
        {**said, "id": "1", "answer": "`wc -l a.py` prints 1; `LIMIT` is 3.", "true": True},
        {**said, "id": "2", "answer": "`wc -l a.py` prints 7.", "true": False, "what": "count: of a command"},
        {**said, "id": "3", "answer": "`LIMIT` is 4.", "true": True},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = judged(file)
    assert [one.wrong for one in found] == [False, False, True]
    assert not report(found, show=True)
    assert report(found[:2], show=True)
    out = capsys.readouterr().out
    assert "true refused     1 of 2" in out
    assert "LIMIT is 3 at a.py:1, not 4" in out
    with pytest.raises(LookupError, match="names the workspace 'elsewhere'"):
        file.write_text(json.dumps({**said, "workspace": "elsewhere", "answer": "", "true": True}))
        judged(file)
