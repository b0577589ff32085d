"""Programs that are known, and what they do with their words; any other program may run each of them."""

from __future__ import annotations

from typing import Final

READERS: Final = frozenset(
    """
ls cat tac head tail wc pwd echo printf whoami id groups uname arch hostname nproc uptime free df du
stat file which whereis printenv basename dirname realpath readlink tr cut paste join comm cmp diff nl
fold fmt expand unexpand rev column seq yes true false : test [ [[ sleep expr bc dc jq od hexdump
strings md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum base64 base32 less more
man ps pgrep pidof top lsof lscpu lsblk lsmod lsb_release locale getconf getent tty who w users last cal
cd pushd popd dirs export set declare typeset local readonly unset shopt alias unalias hash exit return
wait jobs umask ulimit history read shift break continue type let bat exa eza fd fdfind ack ag cloc
tokei vmstat iostat ss netstat ifconfig dig nslookup host ping traceroute numfmt factor tsort look
apropos whatis command
""".split()
)
"""Programs and builtins that read and show whatever their arguments are."""
FILE_TOOLS: Final = frozenset(
    """
cp mv rm rmdir mkdir touch ln link unlink chmod chown chgrp tee dd truncate install mktemp mkfifo shred
tar zip unzip gzip gunzip zcat bzip2 bunzip2 xz unxz zstd 7z rename patch split csplit sort uniq tree
date iconv dos2unix unix2dos xxd find sed awk gawk mawk grep egrep fgrep rg chattr setfacl pip conda
mamba brew apt apt-get dpkg apk yum dnf pacman
""".split()
)
"""Programs that change files, or do with some options, and run no code that a line does not show."""
TRANSFERS: Final = frozenset(
    """
curl wget scp sftp ftp rsync mail mailx sendmail mutt swaks nc ncat telnet http https
""".split()
)
"""Programs that send or fetch data and may write files."""
_TOOLS: Final = frozenset(
    """
pytest ruff mypy black isort flake8 pylint pyright coverage tox nox pre-commit jupyter mkdocs
sphinx-build tsc eslint prettier jest vitest webpack vite rollup esbuild cc gcc g++ clang clang++ ld as
ar nm objdump readelf rustc rustfmt clippy-driver rustup gofmt javac java kotlinc scalac ghc dotnet
swift cmake ctest meson make ninja gradle gradlew mvn mvnw ant rake bundle gem composer yq xmllint tidy
pandoc pdflatex xelatex bibtex latexmk convert magick identify ffmpeg ffprobe sox gnuplot dot openssl
gpg ssh-keygen ssh-add keytool kill killall pkill service journalctl dmesg mount umount hexyl info tldr
apt-cache dpkg-query rpm zypper snap flatpak port zgrep zless zdiff ln getfacl getfattr lsattr tput stty
clear reset fc bind enable times suspend disown fg bg getopts mapfile readarray trap eval exec source
wget2 aria2c hg svn bzr fossil terraform ansible gh glab
""".split()
)
"""Programs whose words name files, targets and packages; only their options may name programs."""
KNOWN: Final = READERS | FILE_TOOLS | TRANSFERS | _TOOLS
