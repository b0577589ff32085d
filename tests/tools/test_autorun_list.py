"""The list of files that run by themselves: broad, without ordinary files, with hidden files, modules and
programs beside it.
"""

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from kestrel_lab.tools.sandbox import autorun_list
from kestrel_lab.tools.sandbox.autorun_list import autorun_reason
from kestrel_lab.tools.sandbox.autorun_watch import AutorunWatch

RUN_THEMSELVES = """
.devcontainer/devcontainer.json .devcontainer.json .claude/settings.json .claude/hooks/x.sh build.rs .envrc
conftest.py a/b/conftest.py .vscode/tasks.json .idea/runConfigurations/x.xml .vim/init.vim .nvimrc .exrc
.dir-locals.el .zed/tasks.json .cursor/mcp.json .gemini/settings.json .codex/config.toml AGENTS.md .mcp.json \
Makefile
makefile.inc GNUmakefile rules.mk CMakeLists.txt build.gradle build.gradle.kts gradlew settings.gradle pom.xml
.mvn/extensions.xml setup.py setup.cfg pyproject.toml noxfile.py tox.ini tasks.py dodo.py Rakefile Gemfile
package.json .npmrc .yarnrc .yarnrc.yml .pnpmfile.cjs vite.config.ts webpack.config.js jest.config.mjs
eslint.config.cjs binding.gyp composer.json justfile Justfile Taskfile.yml Vagrantfile Dockerfile \
Dockerfile.dev
docker-compose.yml docker-compose.override.yaml Jenkinsfile .github/workflows/ci.yml .gitlab-ci.yml
.circleci/config.yml pytest.ini sitecustomize.py usercustomize.py x.pth .coveragerc .bashrc .profile .zshrc \
.gdbinit
.lldbinit .pdbrc .Rprofile .irbrc .pythonrc .cargo/config.toml rust-toolchain.toml .bazelrc WORKSPACE BUILD
pkg/BUILD.bazel flake.nix shell.nix .terraform/providers/x main.tf .husky/pre-commit .pre-commit-config.yaml
lefthook.yml .gitattributes .tool-versions mise.toml .mise/config.toml .ipython/profile_default/startup/x.py
.venv/lib/x.pth .env .eslintrc.json .babelrc .prettierrc.js .travis.yml azure-pipelines.yml .drone.yml \
deno.json
angular.json nx.json mix.exs rebar.config .iex.exs stack.yaml Setup.hs dune-project project.clj build.sbt
Package.swift Podfile Fastfile pubspec.yaml .luarc.json .luacheckrc .screenrc .tmux.conf .inputrc .curlrc \
.wgetrc
.netrc .psqlrc .sqliterc .my.cnf .latexmkrc .ackrc .ripgreprc .editorconfig .clang-tidy .clangd \
compile_commands.json
.ycm_extra_conf.py .vimrc .emacs .emacs.d/init.el .sublime-project x.sublime-project x.code-workspace \
Cargo.toml
go.mod go.work magefile.go Tiltfile skaffold.yaml Procfile .buildkite/pipeline.yml .pylintrc mypy.ini .flake8
ruff.toml manage.py wsgi.py gunicorn.conf.py alembic.ini mkdocs.yml docs/conf.py .readthedocs.yml dvc.yaml \
Snakefile
nextflow.config meson.build SConstruct wscript configure.ac autogen.sh Kconfig .htaccess artisan phpunit.xml \
.user.ini
cpanfile Makefile.PL dist.ini .perltidyrc renv/activate.R .Renviron startup.jl Directory.Build.props \
nuget.config
x.csproj global.json .config/dotnet-tools.json .lintstagedrc.json commitlint.config.js turbo.json lerna.json
renovate.json .releaserc .storybook/main.js playwright.config.ts cypress.config.js gulpfile.js Gruntfile.js \
.swcrc
babel.config.js .mocharc.yml karma.conf.js nodemon.json .node-version .nvmrc .python-version bunfig.toml \
deno.lock
pnpm-workspace.yaml .pnp.cjs
""".split()
ORDINARY = """
README.md src/main.py src/hooks/useTime.ts src/components/Button.tsx lib/util.rs main.go a.txt notes.md \
data.csv report.html style.css
tests/test_a.py tests/data/x.json docs/setup.md my.json conftest.py.txt github/workflows/x.yml src/index.js \
include/a.h x.c x.sql x.ipynb.bak
.gitignore .pytest_cache/v/x .mypy_cache/3.11/x .coverage .DS_Store .venv/bin/python .kestrel/log.db \
pkg/random.py pkg/__init__.py figures/a.png
image.svg models/net.py notebooks/data.parquet src/test.py test.py tests/__init__.py LICENSE CHANGELOG.md
""".split()


@pytest.mark.parametrize("path", RUN_THEMSELVES)
def test_a_file_that_some_program_runs_or_obeys_is_known(path: str) -> None:
    """In the root and in a folder, in upper case too, with a reason that says who does."""
    assert autorun_reason(path)
    assert autorun_reason(f"./{path}") == autorun_reason(path)
    if autorun_list.listed_reason(path.casefold()):
        assert autorun_reason(f"some/folder/{path}") and autorun_reason(path.upper())


@pytest.mark.parametrize("path", ORDINARY)
def test_an_ordinary_file_is_not(path: str) -> None:
    """What people write all day: sources, texts, data, tests, caches."""
    assert autorun_reason(path) == ""


def test_the_list_is_read_once_and_every_line_of_it_counts() -> None:
    """Each reason has patterns, each pattern a reason, and a path is judged in some microseconds."""
    text = Path(autorun_list.__file__).with_name("autorun_files.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert all(line.endswith(":") or line.startswith("  ") for line in lines)
    assert all(
        after.startswith("  ")
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line.endswith(":")
    )
    assert sum(len(line.split()) for line in lines if line.startswith("  ")) > 700
    begun = time.process_time()
    for number in range(10_000):
        autorun_reason(f"src/package/module_{number}.py")
    assert time.process_time() - begun < 5


def told(root: Path, *change: str) -> str:
    """The note on a command that makes a change."""
    watch = AutorunWatch(str(root))
    before = watch.look()
    subprocess.run(["sh", "-c", "; ".join(change)], cwd=root, check=True)
    return "; ".join(watch.changes(before, watch.look()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("echo > .newtoolrc", ".newtoolrc (it is hidden"),
        ("mkdir -p .newtool/deep; echo > .newtool/deep/settings", ".newtool/deep/settings (it is hidden"),
        ("ln -s /elsewhere .claude", ".claude (an agent"),
        ("echo > json.py", "json.py (Python imports it in place of the module json"),
        (
            "mkdir random; echo > random/__init__.py",
            "random/__init__.py (Python imports it in place of the module random",
        ),
        ("echo > pytest.py", "pytest.py (Python imports it in place of the module pytest"),
        ("echo > numpy.cpython-311-x86_64-linux-gnu.so", "in place of the module numpy"),
        (
            "mkdir scripts; echo > scripts/statistics.py",
            "scripts/statistics.py (Python imports it in place of the module statistics",
        ),
        ("echo > ls; chmod +x ls", "ls (it has the name of the program ls"),
        ("mkdir bin; echo > bin/git; chmod 755 bin/git", "bin/git (it has the name of the program git"),
        ("ln -s /bin/true cat", "cat (it has the name of the program cat"),
        ("echo x >> old.sh/.envrc", "old.sh/.envrc (direnv runs it"),
        ("chmod +x sh", "sh (it has the name of the program sh"),
    ],
)
def test_what_is_on_no_list_is_found_by_what_it_is(tmp_path: Path, change: str, said: str) -> None:
    """Hidden files of the root, modules and programs with the name of another one, also when only the mode
    changes.
    """
    (tmp_path / "old.sh").mkdir()
    (tmp_path / "sh").write_text("")
    assert said in told(tmp_path, change)


@pytest.mark.parametrize(
    "change",
    [
        "mkdir pkg; echo > pkg/__init__.py; echo > pkg/json.py",
        "mkdir -p pkg/__pycache__; echo > pkg/__pycache__/types.cpython-311.pyc",
        "mkdir -p .venv/lib/python3.11; echo > .venv/lib/python3.11/random.py",
        "echo > ls",
        "echo > mytool; chmod +x mytool",
        "mkdir -p .pytest_cache/v; echo > .pytest_cache/v/x; echo > .gitignore",
        "mkdir src; echo > src/hidden.py; mkdir src/.x; echo > src/.x/y",
        "echo > plain.txt; rm plain.txt",
    ],
)
def test_what_nobody_runs_is_not_reported(tmp_path: Path, change: str) -> None:
    """A module of a package, a file that is not executable, caches, hidden files deeper down."""
    assert told(tmp_path, change) == ""


def test_a_program_on_the_search_path_is_reported_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the workspace on PATH is where shells look for programs."""
    monkeypatch.setenv("PATH", f"{tmp_path}/tools:{os.environ['PATH']}")
    (tmp_path / "tools").mkdir()
    assert "tools/anything (it lies where programs are searched" in told(
        tmp_path, "echo > tools/anything; chmod +x tools/anything"
    )


def test_a_mode_that_is_taken_away_is_no_news(tmp_path: Path) -> None:
    """What is not executable any more is not run."""
    place = tmp_path / "ls"
    place.write_text("")
    place.chmod(place.stat().st_mode | stat.S_IXUSR)
    assert told(tmp_path, "chmod -x ls") == ""
    assert "ls (" in told(tmp_path, "chmod +x ls")


KINDS = {
    "unchecked bytecode": "python3 -c \"import py_compile as p; p.compile('m.py', invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)\"",
    "bytecode without a source": "python3 -c \"import py_compile as p; p.compile('m.py', cfile='n.pyc')\"",
    "a program of an environment": "echo x > .venv/bin/python; chmod +x .venv/bin/python",
    "a program of an inner environment": "mkdir -p a/.venv/bin; echo x > a/.venv/bin/pip; chmod +x a/.venv/bin/pip",
    "a program of packages": "mkdir -p node_modules/.bin; ln -s ../x node_modules/.bin/eslint",
    "settings without a dot": "echo x > matplotlibrc",
}  # fmt: skip


@pytest.mark.parametrize("what", KINDS)
def test_what_interpreters_run_is_known_by_its_kind(what: str, tmp_path: Path) -> None:
    """Programs in an environment's folders and bytecode that is not compared with a source are noticed, whatever
    their names.
    """
    (tmp_path / "m.py").write_text("x = 1\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    watch = AutorunWatch(str(tmp_path))
    before = watch.look()
    subprocess.run(["bash", "-ec", KINDS[what]], cwd=tmp_path, check=True)
    assert watch.changes(before, watch.look()) != []


def test_bytecode_that_is_compared_is_no_news(tmp_path: Path) -> None:
    """What Python writes by itself when it imports a module is not named."""
    (tmp_path / "m.py").write_text("x = 1\n")
    watch = AutorunWatch(str(tmp_path))
    before = watch.look()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run(["python3", "-c", "import m"], cwd=tmp_path, env=env, check=True)
    assert [*tmp_path.glob("__pycache__/*.pyc")]
    assert watch.changes(before, watch.look()) == []
