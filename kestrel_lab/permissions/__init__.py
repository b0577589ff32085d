"""Permission rules: which calls with which arguments are allowed, asked about or denied, whatever their
danger.

A rule is a table `[[rules]]` of `kestrel.toml`, `[[tool.kestrel.rules]]` of `pyproject.toml`, or `[[rules]]`
of a file of its own (`run --rules FILE`, `Lab(rules=…)`, `lab.run(…, rules=…)`). Its keys:

- `tool`: a name; `*` matches any characters, `?` one (`http_*`, `time:*`).
- `verdict`: `allow`, `ask` or `deny`; `reason`: why, for the log, the person who is asked and the model.
- `command`, `path`, `url`: patterns of the argument of that name, one or a list of which any may fit; `args`:
  patterns of
  others, `{branch = "release-*", count = "<= 3", file = {path = "docs/**"}, script = {command = "make
  ..."}}`. All arguments named must fit.

Patterns of commands consist of words: `git status` matches these two, `*` matches characters within a word,
`...` any further words. Paths are relative to the workspace and compared after links are resolved; a pattern
without a slash matches names at any depth. Addresses are compared by host, port, path and query.

In a rule that allows, `*` matches no option, and `...` matches only options that are known to write and run
nothing (`harmless_options.py`), if the program is known: `git diff ...` does not allow `git diff
--output=FILE`. Options before a sub-command must be written in the rule. In a rule that asks or forbids,
options may be anywhere: `git push` matches `git -C x push` too, in each spelling that `program_options.py`
knows; an option of the pattern also matches joined with others (`-rf`, `-fr`, `-r -f`), abbreviated, or with
a value.

Deny wins over ask, and ask over allow, whatever the order of the rules; if no rule matches a call, its danger
decides. To allow a call, everything must match for certain: each simple command of a line, each of several
paths. To forbid one, a single match is enough, anywhere in the line, with further words after it. If only
running a command would show whether a rule matches, the call is asked about. Rules see the text of commands,
not what scripts and programs do: that is the sandbox's task.
"""
