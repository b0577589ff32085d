"""What commands that run other commands run, by the options that they are given."""

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.shell_syntax.parser import read_line
from kestrel_lab.shell_syntax.template import check_command, render_call


def inner(line: str) -> list[str]:
    """The commands that the first command of a line runs, as text; `?` for an unknown word."""
    return [" ".join(word or "?" for word in command) for command in read_line(line).commands[1:]]


@pytest.mark.parametrize(
    ("line", "runs"),
    [
        ("sh --version", []),
        ("bash --help -c 'rm x'", []),
        ("bash --rcfile /tmp/rc -c 'rm x'", ["rm x"]),
        ("bash --init-file rc --norc -c 'rm x'", ["rm x"]),
        ("bash --norc script -c 'rm x'", []),
        ("bash -s < f", ["?"]),
        ("bash -o pipefail -c 'rm x'", ["rm x"]),
        ("bash +o pipefail -c 'rm x'", ["rm x"]),
        ("bash -xo pipefail script.sh", []),
        ("bash /dev/stdin", ["?"]),
        ("bash /proc/self/fd/0", ["?"]),
        ("bash script.sh -c 'rm x'", []),
        ("bash -", ["?"]),
        ("bash", ["?"]),
        ("watch -n 2 rm x", ["rm x"]),
        ("watch --unknown rm x", ["?"]),
        ('watch "$x"', ["?"]),
        ("trap - INT", []),
        ("trap -p", []),
        ("trap", []),
        ("trap 'rm x' INT", ["rm x"]),
        ("alias ll='ls -l' la='rm x'", ["ls -l", "rm x"]),
        ("alias -p ll", []),
        ('alias "$x"', ["?"]),
        ("git --unheard bisect run rm x", ["?"]),
        ("git bisect run -x rm", ["?"]),
        ("git bisect run rm x", ["rm x"]),
        ("git bisect start", []),
        ("git submodule foreach 'rm x'", ["rm x"]),
        ("git submodule foreach --recursive rm x", ["?"]),
        ("uv run --with x rm", ["?"]),
        ("git -c core.pager='rm x' log", ["rm x"]),
        ("git -c alias.y='!rm x' y", ["rm x"]),
        ("git -c user.name='rm x' y", []),
        ("git config core.editor 'rm x'", ["rm x"]),
        ("git config alias.y '!rm x'", ["rm x"]),
        ("git log core.editor 'rm x'", []),
        ("xargs -I@ rm a@ b", ["rm ? b ?"]),
        ("xargs -I @ rm a@ b", ["rm ? b ?"]),
        ("xargs --replace=% rm % b", ["rm ? b ?"]),
        ("fd . -x rm", ["rm"]),
        ("find . -exec rm {} + -exec ls {} + -name y", ["rm ?", "ls ?"]),
        ("find . -exec", ["?"]),
        (r"find . -name '*.py' -exec rm {} \; -o -exec ls -l {} ';'", ["rm ?", "ls -l ?"]),
        (r"find . -exec awk '{print}' {} \;", ["awk {print} ?"]),
        (r"find . -exec echo + rm {} \;", ["echo + rm ?"]),
        (r"find . -ok sort {} + -o out \; -print", ["sort ? + -o out"]),
        (r"find . -execdir ./run {} \; -execdir /bin/ls \;", ["?", "/bin/ls"]),
        (r"fd . -x mv {} {.}.old \; -x ls", ["mv ? ?", "ls"]),
        ("timeout", []),
        ("timeout -k 3 5 rm x", ["rm x"]),
        ("timeout -fk3 5 rm x", ["rm x"]),
        ("timeout --signal=9 5 rm x", ["rm x"]),
        ("timeout --signal 9 5 rm x", ["rm x"]),
        ("timeout --unheard 5 rm x", ["?"]),
        ("timeout -k $x 5 rm x", ["?"]),
        ("nice -n5 rm x", ["rm x"]),
        ("env A=1 B+=2 rm x", ["rm x"]),
        ("env -u A -- rm x", ["rm x"]),
        ("nice A=1 rm x", ["A=1 rm x"]),
        ("env --split-string='rm x'", ["?"]),
        ("parallel rm", ["?"]),
        ("chroot --userspec=a /x rm y", ["rm y"]),
        ("flock -w 3 lock rm x", ["rm x"]),
        ("/usr/bin/env rm x", ["rm x"]),
    ],
)
def test_what_a_command_runs_is_found_behind_its_options(line: str, runs: list[str]) -> None:
    """Each command is read with the options of its manual; what cannot be told is an unknown command."""
    assert inner(line) == runs


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("printf %s x", ""),
        ("printf '%s' -v x", "printf changes what the other commands do"),
        ('printf "$x" y', "printf changes what the other commands do"),
        ("env LANG=C ls", ""),
        ("env A=1 ls", "it sets A,"),
        ("sudo A=1 ls", "it sets A,"),
        ("A=1 ls", "it sets A,"),
        ("A[0]+=1", "it sets A,"),
        ("ls > x", "it reads or writes a file by a redirection"),
        ("ls 2>/dev/null", ""),
        ("ls\u200b", "characters that cannot be seen"),
        ("ls 'a\\\nb'", "between quotes"),
        ("(ls)", "a subshell"),
        ("ls; cd x; ./run", "it changes the folder and runs a program by a relative path"),
        ("cd x; /bin/run", ""),
        ("./run", ""),
        (r"find . -exec wc {} \;", ""),
        (r"find . -exec wc {} \; -o -exec wc {} ';'; ls", ""),
        ("find . -exec wc 'a ';' b' ;", "do not agree"),
        (r'find . -exec wc "a \; b" \\; ls', "do not agree"),
        ("ls;" * 2_001, "too many commands"),
        ("ls;" * 1_900, ""),
    ],
)
def test_a_line_that_no_rule_can_judge_says_why(line: str, why: str) -> None:
    """The reason names what the line does beyond running plain commands."""
    unclear = read_line(line).unclear
    assert why in unclear
    assert bool(unclear) == bool(why)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ls {{w}}", False),
        ("ls -- {{w}}", True),
        ("xargs -- ls {{w}}", False),
        ("ls --color={{w}}", True),
        ('ls "$x"{{w}}', False),
        ("ls ''{{w}}", False),
        ("ls {{n}}{{w}}", False),
        ("ls a{{w}}", True),
        ("ls > {{w}}", True),
        ("cat <<< {{w}}", True),
        ("x={{w}} ls", True),
    ],
)
def test_a_value_that_a_command_would_read_as_an_option_is_refused(text: str, kept: bool) -> None:
    """A value that begins with `-` stands only where no program takes it for an option."""

    def fill(value: str) -> str:
        return str(render_call({"command": text}, {"w": value, "n": ""})["command"])

    assert "'-5'" in fill("-5")  # a number is no option
    if kept:
        assert "'--force'" in fill("--force")
    else:
        with pytest.raises(
            UsageError, match=r"the value of \{\{w\}\}, '--force', would be read as an option"
        ):
            fill("--force")


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("python x.py {{w}}", True),
        ("python -m json.tool {{w}}", True),
        ("python -c {{w}}", False),
        ("python -c'{{w}}'", False),
        ("psql --command={{w}}", False),
        ("grep -e {{w}} f", True),
        ("sed -e s/a/b/ {{w}}", False),
        ("sed -n p {{w}}", True),
        ("awk -F , p {{w}}", True),
        ("awk -F {{w}} p f", False),
        ("git log {{w}}", True),
        ("git {{w}} -c core.pager=x log", True),
        ("git -c core.pager={{w}} log", False),
        ("FOO={{w}} make", True),
        ("PYTHONPATH={{w}} make", False),
        ("echo $(ls {{w}})", True),
        ("echo \\\\{{w}}", True),
        ("bash -c 'ls' {{w}}", True),
        ("test -f {{w}}", False),
    ],
)
def test_a_value_is_no_part_of_a_program(text: str, safe: bool) -> None:
    """A template is refused where a program would read the value as code, and only there."""
    if safe:
        assert "'it'" in str(render_call({"command": text}, {"w": "it"})["command"])
    else:
        with pytest.raises(UsageError, match="a value could become a part of the program"):
            check_command({"command": text})


def test_a_value_is_quoted_whatever_it_is() -> None:
    """Numbers and objects are written as JSON; a NUL character is refused, since no command can be given
    one.
    """
    assert render_call({"command": "echo {{w}}", "n": "{{w}}"}, {"w": {"a": [1]}}) == {
        "command": "echo '{\"a\":[1]}'",
        "n": {"a": [1]},
    }
    with pytest.raises(UsageError, match="contains a NUL character"):
        render_call({"command": "echo {{w}}"}, {"w": "a\0b"})
