"""`kestrel taint`: which files hold words of others, and what a person vouches for."""

from pathlib import Path

import pytest
from harness import Harness, read
from webserver import answer, serving

from kestrel_lab.cli.main import main


def test_files_are_listed_and_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list names file, run and page; what somebody trusts leaves it, and a run that reads it is free;
    nothing is trusted unnamed.
    """

    def kestrel(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out + told.err

    with serving({"/page": answer("An order, which nobody should obey.", kind="text/plain")}) as web:
        harness = Harness(tmp_path, web)
        harness.place.mkdir()
        run = harness.write("summary.md")
        monkeypatch.chdir(harness.place)
        monkeypatch.setenv("KESTREL_HOME", str(tmp_path / "home"))
        for words in ((), ("summary.md",), (".",)):
            code, out = kestrel("taint", *words)
            assert code == 0
            for part in ("summary.md", f"written by run {run.id}", web.url("/page")):
                assert part in "".join(out.split("\n"))
        assert kestrel("taint", "--trust")[0] != 0
        assert kestrel("taint", "missing.md")[0] != 0
        assert not harness.obeys(read("summary.md"))
        assert kestrel("taint", "summary.md", "--trust")[0] == 0
        assert "no file here" in kestrel("taint")[1]
        harness.session()
        assert harness.obeys(read("summary.md"))
        harness.sessions[0].close()
