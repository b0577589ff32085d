"""Permission rules: which calls with which arguments are allowed, asked about or denied, whatever their
danger.

A rule is a table `[[rules]]` of `kestrel.toml`, `[[tool.kestrel.rules]]` of `pyproject.toml`, or `[[rules]]`
of a file of its own (`run --rules FILE`, `Lab(rules=…)`, `lab.run(…, rules=…)`). Its keys:

- `tool`: a name, `*` and `?` standing for any signs and any sign (`http_*`, `time:*`).
- `verdict`: `allow`, `ask` or `deny`; `reason`: why, for the log, the person who is asked and the model.
- `command`, `path`, `url`: patterns of the argument of that name, one or a list of which any may fit; `args`:
  patterns of
  others, `{branch = "release-*", count = "<= 3", file = {path = "docs/**"}, script = {command = "make
  ..."}}`. All arguments named must fit.

Patterns of commands are words: `git status` is these two, `*` stands for signs in a word, `...` for any
further words. Paths are relative to the workspace and compared by where they lead; a pattern without a slash
is for names at any depth. Addresses are compared by host, port, path and query.

In a rule that allows, `*` stands for no option, and `...` for those options only that are known to write and
run nothing (`harmless_options.py`), if the program is known: `git diff ...` does not allow `git diff
--output=FILE`. Options before a sub-command must be written in the rule. In a rule that asks or forbids,
options may stand anywhere: `git push` is about `git -C x push` too, in each way to write it that
`program_options.py` knows; an option of the pattern fits joined with others (`-rf`, `-fr`, `-r -f`),
abbreviated, or with a value.

Deny wins over ask, ask over allow, in whatever order and place they stand; where no rule is about a call, its
danger decides. To allow, everything must surely fit: each simple command of a line, each of several paths. To
forbid, anything that fits is enough, wherever it stands in the line, with further words behind it; what only
running it would tell is asked about. Rules see the text of commands, not what scripts and programs do: that
is for the sandbox.
"""
