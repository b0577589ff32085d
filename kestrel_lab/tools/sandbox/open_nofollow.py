"""Open a path without following links: a link anywhere on the way is an error."""

from __future__ import annotations

import errno
import os
import stat


def open_nofollow(path: str) -> int:
    """Return a descriptor (`O_PATH`) of an absolute path in which nothing is a link; raises `OSError` otherwise.

    What is checked by name and used by name can be swapped in between. What is bound or allowed by this descriptor is
    what was checked, because a folder that cannot be reached without a link cannot be put into its place.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open("/", flags | os.O_DIRECTORY)
    for name in (part for part in path.split("/") if part):
        try:
            inner = os.open(name, flags, dir_fd=fd)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
        finally:
            os.close(fd)
        fd = inner
    if stat.S_ISLNK(os.fstat(fd).st_mode) or ".." in path.split("/"):
        os.close(fd)
        raise OSError(errno.ELOOP, "it is not where it was when it was checked", path)
    return fd
