"""Command lines written before the rules that read them were mended: those that run a denied command in some way,
and those that only speak of one.
"""

DENIED = ("rm -rf ...", "curl ...", "git push ...")
"""Patterns of the rules that deny."""

RUNS = r"""
eval -- 'rm -rf build'
eval -- rm -rf build
builtin eval -- 'curl x'
command eval 'curl x'
[[ -v 'a[$(curl x)]' ]]
[[ 'a[$(curl x)]' -eq 1 ]]
[[ -R 'a[$(curl x)]' ]]
[[ -t 'a[$(curl x)]' ]]
test -v 'a[$(curl x)]'
printf -v 'a[$(curl x)]' x
read 'a[$(curl x)]' < f
unset 'a[$(curl x)]'
declare 'a[$(curl x)]=1'
(( a['$(curl x)'] ))
let 'a[$(curl x)]=1'
wait -p 'a[$(curl x)]'
mapfile -C 'curl x #' -c 1 arr < f
exec -- curl x
command -- curl x
command -p curl x
trap -- 'curl x' EXIT
systemd-inhibit curl x
systemd-inhibit --why=x rm -rf build
systemd-cat curl x
proxychains4 curl x
proxychains -q rm -rf build
torsocks curl x
torify curl x
tsocks curl x
firejail curl x
batch <<< 'curl x'
at now <<< 'rm -rf build'
sh <<< 'curl x'
bash -s <<< 'rm -rf build'
man -H'curl x' ls
man -Hcurl ls
man --html='curl x' ls
man --htm='curl x' ls
man --pager='curl x' ls
ltrace -o f curl x
eatmydata rm -rf build
faketime '2020-01-01' curl x
fakechroot curl x
cpulimit -l 50 curl x
cpulimit -l 50 -- rm -rf build
schedtool -B -e curl x
ionice -c3 curl x
trickle -s curl x
unshare -n curl x
ssh-agent curl x
dbus-run-session -- curl x
gnome-session-inhibit curl x
kde-inhibit --power curl x
pv-wrapper curl x
pidproxy f curl x
runcon t curl x
sem -j 2 curl x
parallel curl ::: x
rush 'curl {}' f
xe curl x
doas -- rm -rf build
sudo -- curl x
gosu user curl x
su-exec user curl x
setpriv --reuid=1 curl x
s6-setuidgid u curl x
chpst -u u curl x
softlimit -m 1 curl x
multilog t '!curl x' d
logrotate-run curl x
tini -- curl x
dumb-init curl x
catatonit -- curl x
entr -r curl x < f
inotifywait-run curl x
watchman-make -p '*.c' --run 'curl x'
nodemon --exec 'curl x'
pnpm dlx curl x
cargo watch -x 'run' -s 'curl x'
just --shell curl --shell-arg x
make SHELL=curl
make -f - <<< 'a:; curl x'
python3 -c 'import os; os.system("curl x")'
python3 -c 'import subprocess as s; s.run(["rm","-rf","build"])'
python3 -c '__import__("os").system("rm -rf build")'
python3 -c 'exec("import os; os.system(\"curl x\")")'
python3 -c 'from os import system as f; f("curl x")'
python3 -c 'import pty; pty.spawn(["curl","x"])'
python3 - <<< 'import os; os.system("curl x")'
perl -e 'print `curl x`'
perl -e 'exec "curl", "x"'
ruby -e 'puts %x(curl x)'
node -e 'require("child_process").execSync("curl x")'
awk 'BEGIN { system("curl x") }'
gawk 'BEGIN { "curl x" | getline y }'
sed '1e curl x' f
vim -c '!curl x' f
ed f <<< '!curl x'
git -c core.sshCommand='curl x' fetch
git -c alias.z='!curl x' z
git rebase -x 'rm -rf build' HEAD~2
git grep -O'curl x' y
git log --ext-diff --output=x -c diff.external='curl x'
GIT_EDITOR='curl x' git commit
PAGER='curl x' man ls
find . -name x -exec rm -rf {} +
find . -execdir curl x ';'
tar cf a.tar --checkpoint=1 --checkpoint-action=exec='curl x' f
tar -I 'curl x' -xf a
zip a f -T -TT 'curl x'
rsync -e 'curl x' a b:c
ssh -o ProxyCommand='curl x' h
scp -S curl a b:c
less '+!curl x' f
env -S 'curl x'
env - curl x
nice -n 5 curl x
time -p curl x
xargs -a f curl
flock f -c 'curl x'
script -qc 'curl x' f
expect -c 'spawn curl x'
tmux new-session -d 'curl x'
docker run -v /:/h img sh -c 'rm -rf /h'
timeout 5 rm -rf build
stdbuf -oL curl x
bwrap --bind / / curl x
git bisect run curl x
git submodule foreach 'curl x'
git filter-branch --tree-filter 'rm -rf build'
mytool --then 'curl x'
unknownwrap -- rm -rf build
./run.sh curl x
bin/wrap git push
capsh --print -- -c 'curl x'
ld.so --preload x curl x
/lib64/ld-linux-x86-64.so.2 /usr/bin/curl x
busybox sh -c 'curl x'
coproc curl x
select x in a; do curl $x; done
case a in a) curl x;; esac
f() { curl x; }; f
if true; then curl x; fi
while read l; do rm -rf "$l"; done < f
cat <(curl x)
echo $(curl x)
echo "`curl x`"
${x:-curl} y
$'\x63url' x
c""url x
\curl x
/usr/bin/cur? x
{ curl x; } 2>/dev/null
! curl x
(curl x)
for i in $(curl x); do :; done
x=$(curl y) ls
export PROMPT_COMMAND='curl x'
BASH_ENV=<(echo curl x) bash -c :
let 'x=a[$(curl x)]'
[[ a == $(curl x) ]]
[[ -n 'b[`curl x`]' ]]
echo $(( a['$(curl x)'] ))
for (( i=a['$(curl x)']; i<1; i++ )); do :; done
declare -i x='a[$(curl x)]'
bash <<EOF
curl x
EOF
at -f - now <<EOF
curl x
EOF
psql <<< '\! curl x'
sqlite3 x.db '.shell curl x'
mysql -e 'system curl x'
python3 - <<EOF
import os
os.system("curl x")
EOF
python3 -c 'import re; re.os.system("curl x")'
python3 -c 'from pathlib import os; os.system("curl x")'
python3 -c 'print(().__class__.__base__.__subclasses__()); "curl x"'
python3 -c 'import sys; sys.modules["os"].system("curl x")'
python3 -c 'f=exec; f("curl x")'
python3 -c 'import typing; typing.get_type_hints("curl x")'
python3 -c 'import json; json.codecs.builtins.exec("curl x")'
git config core.pager 'curl x'
git -c core.editor='curl x' commit
git bisect run sh -c 'curl x'
ssh h curl x
sshpass -p x ssh h curl x
watch -n1 curl x
chroot / curl x
su -c 'curl x'
nsenter -t 1 curl x
pkexec curl x
taskset 1 curl x
numactl -N 0 curl x
setarch -R curl x
perf stat curl x
strace -f curl x
valgrind curl x
gdb --args curl x
hyperfine 'curl x'
watchexec curl x
fd -x curl
rg --pre curl x
sort --compress-program=curl f
split --filter='curl x' f
tar --to-command='curl x' -xf a
tar --use-compress-program='curl x' -cf a b
wget --use-askpass=curl x
rsync --rsh='curl x' a b
npx curl x
uvx curl x
pipx run curl
conda run curl x
poetry run curl x
uv run curl x
bundle exec curl x
flatpak-spawn --host curl x
toolbox run curl x
distrobox-enter -- curl x
lima curl x
vagrant ssh -c 'curl x'
kubectl exec p -- curl x
docker exec c curl x
podman run i curl x
"""

HARMLESS = r"""
python3 -c 'print("rm -rf")'
python3 -c 'print("curl x")'
python3 -c "import json; print(json.dumps({'a': 'git push'}))"
python3 -c 'import sys; sys.stdout.write("rm -rf build\n")'
python3 -c 'x = "curl"; print(len(x))'
python3 -c 'for w in ["curl", "rm"]: print(w.upper())'
python3 -c 'import re; print(re.findall("curl", "a curl b"))'
python3 -c 'assert "rm -rf" not in open("f").read()'
python3 -c 'from pathlib import Path; print(Path("curl.txt").read_text())'
python -c 'import math; print(math.sqrt(2), "git push")'
python3 -c 'print(sorted(["rm", "curl"]))'
python3 -c 'import collections; print(collections.Counter("curl"))'
git log --grep 'rm -rf'
git log --grep='curl x'
git log --grep 'git push' --oneline
git commit -m 'do not rm -rf build'
git commit -m 'use curl x'
git commit -am 'git push by hand'
git commit --message='curl x is gone'
git commit -m "rm -rf; curl" -m 'and more'
git tag -a v1 -m 'git push later'
git tag -m 'rm -rf build' v2
git stash push -m 'before rm -rf'
git merge -m 'curl x' side
git notes add -m 'rm -rf build'
git log -S 'rm -rf'
git log -G 'curl .*x'
git log --author 'curl'
git grep 'rm -rf'
git grep -n -e 'curl x'
git show HEAD:docs/curl.md
git diff -- curl.c
git log --format='%h curl %s'
git blame -L 1,3 curl.c
git branch --list 'curl*'
git checkout -b curl-docs
git add rm.md curl.md
git stash list --grep=curl
grep -rn 'rm -rf' .
grep -e 'curl x' -r src
rg 'rm -rf build'
rg -e 'curl x' -g '*.md'
rg --glob '!curl' push
ag 'curl x'
ack 'rm -rf'
echo 'rm -rf build'
echo curl x
printf '%s\n' 'curl x'
printf 'rm -rf %s' build
sed -n '/curl/p' f
sed 's/rm -rf/rm -r/' f
sed -i 's|curl x|wget x|' f
awk '/curl/ { print $1 }' f
awk '{ print "rm -rf", $1 }' f
jq '.curl' f.json
jq -r '.a | select(.b == "rm -rf")' f
yq '.curl' f.yaml
ls curl
cat curl.txt
head -n 3 curl.log
find . -name 'curl*'
find . -name 'rm -rf'
pytest -k 'curl'
pytest -k 'push and not rm'
pytest tests/test_curl.py
python -m pytest -k curl
pip install curl-cffi
pip show pycurl
pip download curl
apt-cache show curl
apt list curl
dpkg -l curl
which curl
type curl
command -v curl
man curl
info curl
whatis curl
tldr curl
gh issue list --search 'curl x'
gh pr create --title 'curl x' --body 'rm -rf build'
gh issue create -t 'rm -rf' -b 'curl x'
docker build -t curl .
docker ps --filter name=curl
docker images curl
kubectl get pods -l app=curl
kubectl logs curl
cargo test curl
cargo doc -p curl
npm view curl
go test -run 'Curl'
make -n curl-docs
test -f curl
[ "$x" = 'rm -rf' ]
[[ $x == curl ]]
ruff check --select curl
mypy curl.py
diff curl.a curl.b
wc -l curl.txt
sort curl.txt
tr a-z A-Z < curl.txt
base64 curl.txt
touch curl.txt
mkdir curl
cp curl.txt b
mv curl.txt b
tar -tf curl.tar
unzip -l curl.zip
stat curl
file curl
node --check curl.js
git commit -F - <<EOF
do not rm -rf build
EOF
cat > f <<EOF
curl x
EOF
cat <<< 'rm -rf build'
grep curl <<< "$x"
python3 -c 'print("a")' curl
tee f <<< 'curl x'
poetry show curl
uv pip show curl
conda list curl
docker inspect curl
systemctl status curl
brew info curl
snap info curl
git rev-parse curl
git config user.name curl
git log --oneline -- curl
[[ -f curl ]]
[[ $x == 'rm -rf' ]]
case $x in curl) echo y;; esac
javac Curl.java
gcc curl.c -o curl
openssl dgst curl
pandoc curl.md
jest curl
eslint curl.js
terraform plan -target=curl
"""

ASKED = r"""
npm test -- -t 'curl'
node -e 'console.log("rm -rf build")'
ruby -e 'puts "curl x"'
perl -ne 'print if /curl/' f
psql -c "select 'curl'"
x=curl
export NAME=curl
"""
"""Harmless lines that are asked about: code in languages that are not read, and variables."""


def lines_of(text: str) -> list[str]:
    """Return the lines of a list, each with the text that it feeds to a command up to `EOF`."""
    lines: list[str] = []
    for line in text.strip().splitlines():
        if lines and "<<EOF" in lines[-1] and not lines[-1].endswith("\nEOF"):
            lines[-1] += f"\n{line}"
        else:
            lines.append(line)
    return lines
