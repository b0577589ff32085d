"""Commands that hide where a program runs one of its words: what is forbidden is found there, what is allowed
is not widened.
"""

import time

import pytest

from kestrel_lab.core.calls import Call
from kestrel_lab.permissions.command_patterns import CommandPattern
from kestrel_lab.permissions.rulebook import Rulebook, read_rulebook
from kestrel_lab.shell_syntax.parser import read_line

FORBIDS = read_rulebook(
    [
        {
            "tool": "bash",
            "verdict": "deny",
            "command": ["curl ...", "rm", "git push", "sudo ...", "git reset --hard"],
        }
    ]
)


def verdict(line: str, book: Rulebook = FORBIDS) -> str:
    """What the rules say of a line; `-` for nothing."""
    ruling = book.ruling(Call(id="c", kind="tool", target="bash", args={"command": line}), "/")
    return "-" if ruling is None else ruling.verdict


HIDDEN = r"""
env - curl x
env -i curl x
env - PATH=/bin curl x
env -u A - curl x
env -C / curl x
env --chdir=/ curl x
env --argv0=x curl x
env -a x curl y
env --ignore-signal=INT curl x
env --default-signal curl x
env --block-signal curl x
env --list-signal-handling curl x
env -vS 'curl x'
env -S'curl x'
flock /tmp/l -c 'curl x'
flock -c 'curl x' /tmp/l
flock /tmp/l --command 'curl x'
flock -F l curl x
git rebase -x 'curl x' main
git rebase -x'curl x' main
git rebase --exec 'curl x' HEAD~2
git rebase --exec='curl x' HEAD~2
git rebase -i --exec='curl x' HEAD~2
git -C d rebase -x 'curl x'
git -c core.editor='curl x' commit
git -c sequence.editor='curl x' rebase -i
git -c core.sshCommand='curl x' fetch
git -c core.fsmonitor='curl x' status
git -c alias.x='!curl x' x
git -c diff.external='curl x' diff
git -c diff.x.textconv='curl x' diff
git -c filter.x.clean='curl x' add .
git -c credential.helper='!curl x' fetch
git -c gpg.program='curl' commit
git -c gpg.ssh.program='curl' commit
git -c uploadpack.packObjectsHook='curl x' fetch
git -c remote.x.uploadpack='curl x' fetch
git -c remote.x.receivepack='curl x' push
git -c merge.x.driver='curl x' merge y
git -c mergetool.x.cmd='curl x' mergetool
git -c difftool.x.cmd='curl x' difftool
git -c browser.x.cmd='curl x' help
git -c man.x.cmd='curl x' help
git -c core.gitProxy='curl x' fetch
git -c interactive.diffFilter='curl x' add -p
git -c sendemail.smtpserver='curl x' send-email
git -c trailer.x.command='curl x' commit
git -c imap.tunnel='curl x' imap-send
git -c protocol.ext.allow=always clone 'ext::curl x'
git clone 'ext::curl x'
git clone -c core.sshCommand='curl x' y
git clone -u 'curl x' y
git clone --upload-pack='curl x' y
git fetch --upload-pack 'curl x'
git push --receive-pack='curl x'
git push --exec='curl x'
git ls-remote --upload-pack='curl x' y
git archive --exec='curl x' --remote=y
git bisect run curl x
git submodule foreach 'curl x'
git submodule foreach --recursive 'curl x'
git submodule --quiet foreach 'curl x'
git filter-branch --tree-filter 'curl x'
git difftool -x 'curl x'
git difftool --extcmd='curl x'
git grep -O'curl x' y
git grep --open-files-in-pager='curl x' y
git config core.editor 'curl x'
git config --global core.pager 'curl x'
git config set core.editor 'curl x'
git send-email --smtp-server='curl x'
PAGER='curl x' git log
GIT_PAGER='curl x' git log
GIT_EDITOR='curl x' git commit
GIT_SSH_COMMAND='curl x' git fetch
GIT_EXTERNAL_DIFF='curl x' git diff
GIT_SEQUENCE_EDITOR='curl x' git rebase -i
EDITOR='curl x' git commit
LESSOPEN='|curl x' less y
PROMPT_COMMAND='curl x' bash -i
hash -p /usr/bin/curl ls; ls x
hash -p /usr/bin/curl ls
alias ls=curl; ls x
trap 'curl x' EXIT
trap -- 'curl x' EXIT
complete -C 'curl x' ls
compgen -C 'curl x'
mapfile -C 'curl x' -c 1 a
readarray -C 'curl x' a
mapfile -c1 -C'curl x' a
coproc curl x
coproc X { curl x; }
exec -a ls curl x
exec curl x
command curl x
command -p curl x
builtin eval 'curl x'
xargs curl
xargs -I{} curl {}
xargs sh -c 'curl x'
parallel curl ::: x
parallel 'curl {}' ::: x
watch curl x
watch -n1 'curl x'
watch -x curl x
script -c 'curl x'
script -qc 'curl x' /dev/null
script -q -c 'curl x' /dev/null
script --command='curl x'
su -c 'curl x'
su root -c 'curl x'
su - -c 'curl x'
runuser -u x curl
runuser -u x -- curl x
sg group 'curl x'
sg group -c 'curl x'
ssh h curl x
ssh -o ProxyCommand='curl x' h
ssh -oProxyCommand='curl x' h
ssh -o LocalCommand='curl x' -o PermitLocalCommand=yes h
scp -S 'curl' a h:b
scp -o ProxyCommand='curl x' a h:b
sftp -S curl h
sftp -D 'curl x'
tar --checkpoint=1 --checkpoint-action=exec='curl x' -cf a b
tar -cf a b --checkpoint --checkpoint-action='exec=curl x'
tar -I 'curl x' -xf a
tar --use-compress-program='curl x' -xf a
tar --to-command='curl x' -xf a
tar -F 'curl x' -cf a b
tar --rsh-command='curl x' -cf h:a b
tar -xf a --info-script='curl x'
rsync -e 'curl x' a h:b
rsync --rsh='curl x' a h:b
rsync --rsync-path='curl x' a h:b
find . -exec curl x \;
find . -execdir curl {} +
find . -ok curl {} \;
awk 'BEGIN { system("curl x") }'
awk 'BEGIN { "curl x" | getline }'
gawk 'BEGIN { print | "curl x" }'
sed '1e curl x' f
sed -e 's/x/curl x/e' f
vim -c '!curl x' f
vim -c ':!curl x'
vim +'!curl x' f
vi --cmd '!curl x'
ex -c '!curl x'
nvim -c '!curl x'
emacs --eval '(shell-command "curl x")'
man -P 'curl x' ls
man --pager='curl x' ls
less '+!curl x' f
zip a b -T -TT 'curl x'
zip a b -T --unzip-command='curl x'
make SHELL='curl'
make --eval='$(shell curl x)'
python -c 'import os; os.system("curl x")'
python3 -m timeit 'import os; os.system("curl x")'
perl -e 'system("curl x")'
perl -ne 'system("curl x")'
ruby -e 'system "curl x"'
node -e 'require("child_process").execSync("curl x")'
php -r 'system("curl x");'
lua -e 'os.execute("curl x")'
sqlite3 x '.shell curl x'
psql -c '\! curl x'
mysql -e '\! curl x'
gdb -ex 'shell curl x'
gdb --batch -ex '!curl x'
strace curl x
ltrace curl x
time curl x
nice curl x
ionice -c 3 curl x
chrt 1 curl x
taskset 1 curl x
stdbuf -o0 curl x
setsid curl x
nohup curl x
timeout 5 curl x
unbuffer curl x
systemd-run curl x
systemd-run --user -p x curl x
busybox curl x
busybox sh -c 'curl x'
sudo curl x
sudo -u x -- curl y
sudo -s curl x
doas curl x
doas -u x curl y
chroot / curl x
unshare -r curl x
nsenter -t 1 curl x
ip netns exec x curl y
docker run x curl y
docker exec x curl y
docker compose run x curl y
kubectl exec x -- curl y
npx curl x
npm exec curl x
npm exec -c 'curl x'
npx -c 'curl x'
uvx curl x
uv run curl x
uv run --with x curl y
uv tool run curl x
pipx run curl x
poetry run curl x
pdm run curl x
hatch run curl x
hatch env run curl x
conda run curl x
conda run -n x curl y
mise exec -- curl x
mise x -- curl x
asdf exec curl x
direnv exec . curl x
nix-shell --run 'curl x'
nix run x -- curl
nix develop -c curl x
nix shell x -c curl y
bundle exec curl x
rbenv exec curl x
pyenv exec curl x
nvm exec curl x
go test -exec 'curl x' ./...
go build -toolexec 'curl x'
entr curl x
fd -x curl
fd . -x curl {}
fd --exec curl
fd --exec=curl
rg --pre 'curl' x
rg --pre=curl x
rg --hostname-bin=curl x
sort --compress-program=curl x
split --filter='curl x' y
install --strip-program=curl -s a b
tmux new 'curl x'
tmux new-session -d 'curl x'
tmux send-keys 'curl x' Enter
screen -dm curl x
screen -X stuff 'curl x'
dbus-run-session curl x
dbus-launch curl x
xvfb-run curl x
fakeroot curl x
firejail curl x
bwrap --ro-bind / / curl x
prlimit --nofile=1 curl x
setarch x86_64 curl x
linux64 curl x
setpriv --x curl y
capsh -- -c 'curl x'
start-stop-daemon --start --exec /usr/bin/curl
expect -c 'spawn curl x'
socat EXEC:'curl x' -
nc -e /usr/bin/curl x 1
ncat --exec 'curl x' x 1
bash -c 'curl x'
bash -lc 'curl x'
bash -O extglob -c 'curl x'
bash --rcfile <(echo curl x) -i
bash <<< 'curl x'
eval "curl x"
eval curl x
C=curl; $C x
$(echo curl) x
/usr/bin/curl x
./curl x
~/curl x
if true; then curl x; fi
for i in 1; do curl x; done
while curl x; do :; done
case x in x) curl x;; esac
f() { curl x; }; f
function f { curl x; }
( curl x )
{ curl x; }
! curl x
curl x &
[[ $(curl x) ]]
((x=$(curl x)))
echo `curl x`
echo $(curl x)
echo "$(curl x)"
cat <(curl x)
x=$(curl x)
select x in $(curl x); do :; done
time -p curl x
busybox env curl x
toybox xargs curl
man -P curl ls
env --split-string='curl x'
env -iS 'curl x'
sshpass -p x ssh h curl
GIT_SSH=curl git fetch
VISUAL='curl x' crontab -e
MANPAGER='curl x' man ls
BROWSER='curl %s' xdg-open x
SYSTEMD_EDITOR=curl systemctl edit x
RSYNC_RSH='curl x' rsync a h:b
TAR_OPTIONS='--to-command=curl' tar xf a
CMD='curl x'; $CMD
PS4='$(curl x)' bash -x y
BASH_ENV='$(curl x)' bash y
MAKEFLAGS='--eval=$(shell curl)' make
GIT_PROXY_COMMAND=curl git fetch
git rebase --exec 'make && curl x'
git -c rebase.instructionFormat=x rebase -x curl
git config alias.x '!curl x'
git config --add core.pager 'curl x'
git remote add x 'ext::curl x'
git submodule foreach --recursive "curl x"
busybox sh -c "curl x"
nohup sh -c 'curl x' &
stdbuf -oL curl x
echo x | xargs -I{} sh -c 'curl {}'
printf 'curl x' | sh
sh <(curl x)
. <(curl x)
bash -c "$(curl x)"
bash -ic 'curl x'
zsh -c 'curl x'
fish -c 'curl x'
dash -c 'curl x'
ash -c 'curl x'
python -c 'from subprocess import run; run(["curl"])'
pypy3 -c 'import os; os.system("curl")'
npm exec --call 'curl x'
npm run-script x --script-shell=curl
pip install --config-settings editable='curl x'
cmake -E env curl x
bazel run --run_under='curl x' //x
cargo --config 'target.x.runner="curl"' run
cargo run --config=build.rustc-wrapper=curl
RUSTC_WRAPPER=curl cargo build
CC=curl make
make CC='curl x'
tox -e x -- curl
nox -- curl
just --shell curl x
just --shell-arg curl x
docker run --entrypoint curl img x
docker exec -it c sh -c 'curl x'
docker-compose exec c curl x
podman run x curl y
kubectl run x --image=y --command -- curl z
ansible all -m shell -a 'curl x'
ansible localhost -a 'curl x'
vagrant ssh -c 'curl x'
gcloud compute ssh x --command='curl y'
aws ssm send-command --parameters commands='curl x'
wget --use-askpass=curl x
mutt -e 'set x=`curl x`'
dc -e '!curl x'
time -o x curl y
perf record curl x
valgrind curl x
hyperfine 'curl x'
entr -r curl x
watchexec curl x
ulimit -c; curl x
nice -n 5 -- curl x
ionice -c2 -n7 curl x
trap curl EXIT
trap "curl x" DEBUG
set -- curl x; "$@"
f=curl; "$f" x
eval "$(echo curl x)"
test -v 'x[$(curl x)]'
[[ -v x[$(curl)] ]]
printf -v 'x[$(curl)]' y
read -r x < <(curl x)
export X=$(curl x)
local x=`curl x`
cat < <(curl x)
tee >(curl x)
coproc sh -c 'curl x'
bind -x '"\C-x": curl x'
""".strip().split("\n")


HARMLESS = r"""
git commit -m 'rm -rf / and curl'
git commit -m "remove curl (it was slow)"
git commit --message='git push later'
git rm old.py
git log --grep=curl
git log --format='%h %s' --author='Ann Smith'
git -c user.name='Curl' commit -m x
git -c core.quotepath=off status
git -c color.ui=always diff
git rebase main
git rebase -i HEAD~3
git clone https://github.com/curl/curl
git clone https://github.com/a/b c
git add curl.md
git checkout -b curl-fix
git diff --stat
git grep -n 'rm -rf'
git stash push -m 'wip rm'
git config user.name 'A B'
git config --get remote.origin.url
git submodule update --init --recursive
git difftool --tool=vimdiff
sed -n '1,20p' f
sed -i 's/rm/del/g' f
sed 's/a b/c d/' f
sed -e 's/a/b/' f
sed -n '/def x/,/return/p' f
awk '{print $1}' f
awk -F, '{ s += $2 } END { print s }' f
awk -F: 'NR > 1 { print $1, $2 }' f
python -c 'print(1)'
python -c 'import json; print(json.load(open("x.json"))["a"])'
python -m pytest -q -k 'rm or curl'
pytest -k 'rm or curl' -q
python x.py --message 'remove all'
grep -rn 'curl' src
grep -rn "rm -rf" .
rg 'curl x' src
find . -name '*.py' -not -path './rm/*'
tar -xzf a.tgz -C out
tar xzf a.tgz
tar czf a.tgz src tests
rsync -av src/ dst/
docker ps -a
docker build -t x .
docker run --rm -v "$PWD:/w" img pytest
npm install curl
npm run build
apt install curl
which curl
man curl
echo 'curl x'
echo "rm -rf /"
printf '%s\n' 'curl x'
jq '.rm | .curl' f
PYTHONPATH=src pytest
NODE_ENV=production npm run build
DEBUG=1 FOO='a b' make
ENV=production npm start
NODE_OPTIONS=--max-old-space-size=4096 npm run build
DATABASE_URL=postgres://u:p@h/rm make
make -j4 test
make CC=gcc
make PREFIX=/usr install
cargo test -- --nocapture
cargo build --release
go test ./... -run 'TestRm'
gh pr create --title 'Remove curl' --body 'We use requests. It was rm before.'
kubectl get pods -o wide
less README.md
vim README.md
ssh host uptime
env LANG=C ls
timeout 60 pytest -q
ls 'a b'
cp 'a b' c
uv run pytest -q
ruff check . --fix
terraform plan -out=x
psql -c 'select 1'
node -e 'console.log(1)'
perl -pe 's/a/b/' f
xargs -n1 wc
sort -t, -k2 f
zip -r a.zip src
make SHELL=/bin/bash
""".strip().split("\n")


@pytest.mark.parametrize("line", HIDDEN)
def test_a_forbidden_command_is_found_wherever_a_program_runs_its_words(line: str) -> None:
    """Denied where it surely runs; asked about where only the program's manual could tell."""
    assert verdict(line) in ("deny", "ask")


@pytest.mark.parametrize("line", HARMLESS)
def test_words_that_no_program_runs_are_nobodys_command(line: str) -> None:
    """Messages, patterns, names of branches and settings that only shape what is shown ask nothing."""
    assert verdict(line) == "-"


SURE = [
    "env - curl x",
    "env - A=1 curl x",
    "env -u A - curl x",
    "env -a y curl x",
    "flock l -c 'curl x'",
    "flock l --command='curl x'",
    "git rebase -x 'curl x' main",
    "git rebase -x'curl x'",
    "git rebase --exec='curl x'",
    "git rebase --exe 'curl x'",
    "git -C d rebase -i --exec 'curl x'",
    "git clone -u 'curl x' y",
    "git fetch --upload-pack='curl x'",
    "git difftool -x 'curl x'",
    "git grep -O'curl x' y",
    "script -qc 'curl x'",
    "su - -c 'curl x'",
    "su --command='curl x'",
    "hash -p /usr/bin/curl ls",
    "hash -p/usr/bin/curl ls",
    "complete -C 'curl x' ls",
    "mapfile -c1 -C 'curl x' a",
    "trap -- 'curl x' EXIT",
    "man -P 'curl x' ls",
    "man --pager=curl ls",
    "sftp -D 'curl x'",
    "scp -S curl a h:b",
]


@pytest.mark.parametrize("line", SURE)
def test_what_a_manual_says_is_run_is_denied(line: str) -> None:
    """Options whose value is a command are read as that command, joined, abbreviated or not."""
    assert verdict(line) == "deny"


ALLOWED = {
    "tar ...": ("tar -xzf a.tgz -C out", "tar czf a.tgz src", "tar --extract --file=a.tgz"),
    "rsync ...": ("rsync -av --delete src/ dst/",),
    "sed ...": ("sed -n '1,20p' f", "sed 's/a b/c d/g' f", "sed -E 's|x|y|' f"),
    "awk ...": ("awk '{ print $1 }' f", "awk -F, '{ s += $2 } END { print s }' f"),
    "less ...": ("less -N README.md",),
    "vim ...": ("vim README.md",),
    "man ...": ("man 3 printf",),
    "zip ...": ("zip -rq a.zip src",),
    "git ...": ("git rebase main", "git clone https://example.org/a b"),
}
WIDER = {
    "tar ...": (
        "tar -I sh -xf a",
        "tar xIf sh a",
        "tar -xf a --to-command=sh",
        "tar -cf a b --checkpoint-action=exec=sh",
        "tar -xf a --use-comp=sh",
    ),
    "rsync ...": ("rsync -e sh a h:b", "rsync -ave sh a h:b", "rsync --rsync-path=sh a h:b"),
    "sed ...": (
        "sed '1e sh' f",
        "sed 1e f",
        "sed s/x/y/e f",
        "sed srarbre f",
        "sed -e 1e f",
        "sed 'w x' f",
        "sed -i s/a/b/ f",
        "sed 's/x/y/w f' f",
    ),
    "awk ...": (
        "awk 'BEGIN { system(\"sh\") }'",
        "awk 'BEGIN { \"sh\" | getline }'",
        "awk '{ print > \"x\" }' f",
        "awk -f x",
    ),
    "less ...": ("less '+!sh' f", "less -o x f"),
    "vim ...": ("vim -c '!sh' f", "vim '+!sh' f", "vim --cmd x f", "vim -S x"),
    "man ...": ("man -P sh ls", "man --pager=sh ls", "man -H sh ls"),
    "zip ...": ("zip a b -T -TT sh", "zip a b --unzip-command=sh"),
    "git ...": (
        "git clone 'ext::sh x'",
        "git rebase -x sh",
        "git -c core.pager=sh log",
        "git --exec-path=x log",
    ),
    "ls ...": (
        "BASH_ENV=x ls",
        "ENV=x ls",
        "env BASH_ENV=x ls",
        "PAGER=sh ls",
        "LD_PRELOAD=x ls",
        "export BASH_ENV=x; ls",
        "hash -p sh ls; ls",
    ),
}


@pytest.mark.parametrize(
    ("pattern", "line"), [(pattern, line) for pattern, lines in ALLOWED.items() for line in lines]
)
def test_a_rule_that_allows_covers_everyday_use(pattern: str, line: str) -> None:
    """Options that only shape what is read and written are covered, and scripts that run nothing."""
    assert verdict(line, read_rulebook([{"tool": "bash", "verdict": "allow", "command": pattern}])) == "allow"


@pytest.mark.parametrize(
    ("pattern", "line"), [(pattern, line) for pattern, lines in WIDER.items() for line in lines]
)
def test_a_rule_that_allows_a_program_does_not_allow_what_it_may_run(pattern: str, line: str) -> None:
    """`...` stands for no option and no script of a program that may run commands, unless it is known to run
    none.
    """
    assert verdict(line, read_rulebook([{"tool": "bash", "verdict": "allow", "command": pattern}])) == "-"


def test_a_script_that_is_written_into_the_rule_is_allowed() -> None:
    """The very word is, another one is not, and the reason names it."""
    pattern = CommandPattern.parse("sed 1e *")
    assert pattern.allows(("sed", "1e", "f")) and not pattern.allows(("sed", "2e", "f"))
    assert CommandPattern.parse("sed ...").refused(("sed", "1e", "f")) == "1e"


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("(", ")"),
        ("$(echo ", ")"),
        ("{ ", ";}"),
        ("$((", "))"),
        ('"$(', 'x)"'),
        ("<(", ")"),
        ("${a:-", "}"),
        ("if x; then ", "; fi"),
        ("! ", ""),
        ("a|", ""),
        ("eval ", ""),
        ("`", "`"),
        ("[[ ", "]]"),
    ],
)
def test_a_line_that_is_nested_without_end_is_refused_at_once(begin: str, end: str) -> None:
    """Three thousand levels take no minutes; they took 97 seconds.

    Whatever is not read is an unknown command.
    """
    begun = time.process_time()
    line = read_line(begin * 3_000 + "rm x" + end * 3_000)
    assert time.process_time() - begun < 10
    assert line.unclear and (None,) in line.commands
    assert verdict("( " * 3 + "rm x" + " )" * 3) == "deny"
