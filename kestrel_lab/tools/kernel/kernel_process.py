"""A kernel of its own in a process that restricts itself first: it reads programs and the workspace, writes
the workspace unless that is denied, and has no network.

Started as `python -m kestrel_lab.tools.kernel.kernel_process CONNECTION WORKSPACE SCRATCH MEMORY
writes|reads`.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

from kestrel_lab.tools.kernel.inspection import inspect_name, variable_lines
from kestrel_lab.tools.kernel.lockdown import read_places
from kestrel_lab.tools.sandbox import landlock
from kestrel_lab.tools.sandbox.seccomp import AF_INET, AF_INET6, filter_program

_AF_UNIX, _AF_NETLINK = 1, 16
LIST, INSPECT = "_kestrel_listed", "_kestrel_inspected"
"""Names under which the kernel has what inspects its variables."""


def main() -> None:
    """Restrict this process, then run as a kernel until a shutdown request."""
    connection, workspace, scratch, memory, access = sys.argv[1:6]
    if int(memory):
        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    read = [*read_places(workspace), str(Path(__file__).parents[2])]
    # Before there are threads, which Landlock would not restrict. The sockets of a kernel are made after it.
    landlock.drop_privileges()
    landlock.restrict_process(
        landlock.Access(system=read, write=[workspace, scratch] if access == "writes" else [scratch])
    )
    landlock.filter_calls(filter_program((_AF_UNIX, AF_INET, AF_INET6, _AF_NETLINK)))
    from ipykernel.kernelapp import IPKernelApp

    # No `--matplotlib`: it would look through all fonts at every start. The first plot does, by MPLBACKEND.
    app: Any = IPKernelApp.instance()
    app.initialize(
        [
            "-f",
            connection,
            "--IPKernelApp.no_stdout=False",
            "--HistoryManager.enabled=False",
        ]
    )
    namespace = app.shell.user_ns
    app.shell.user_ns_hidden[LIST] = app.shell.user_ns_hidden[INSPECT] = None
    namespace[LIST] = lambda: variable_lines(namespace)
    namespace[INSPECT] = lambda name: inspect_name(namespace, name)
    landlock.filter_calls(filter_program((), effects=False), all_threads=True)
    app.start()


if __name__ == "__main__":
    main()
