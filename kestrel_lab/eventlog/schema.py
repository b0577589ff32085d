"""Tables, triggers and migrations of the log.

The rules live in the database, so that no code path can break them: a run changes its state only by a
`state_transition` event that the map of legal transitions allows, event numbers have no gaps, nothing but an
undo or a label is appended to an ended run, no event and no trial is changed, none is deleted but those of a
run that is removed, a question about a call is decided once, a forked run begins behind an event of its
parent, in the state the parent was in then, and only the session that claimed a run last adds to it: each
claim raises the run's epoch by one, and each event carries the epoch it was written in, and a hash of itself
and the one before. Decisions, undos and labels may come from anywhere; those of other sessions carry no
epoch. `INSERT OR REPLACE` deletes rows without firing delete triggers, hence the checks before each insert.
Results carry a hash of themselves, and their evaluations a head. Notes are the exception: they live beside
the log, which names them by id only, so that they can be changed and forgotten.
"""

from kestrel_lab.core.run_types import TERMINAL, TRANSITIONS, RunStatus
from kestrel_lab.eventlog.seals.row_seals import SEALED, seal_rules
from kestrel_lab.eventlog.text_index import FORM
from kestrel_lab.host.log_files import APPLICATION_ID

# A table, because a trigger cannot call Python.
_LEGAL = ",".join(
    f"('{source}','{target}')" for source, targets in TRANSITIONS.items() for target in sorted(targets)
)
_TERMINAL = ",".join(f"'{status}'" for status in sorted(TERMINAL))

_FIRST = f"""
CREATE TABLE transitions(source TEXT NOT NULL, target TEXT NOT NULL, PRIMARY KEY(source, target)) WITHOUT \
ROWID;
INSERT INTO transitions VALUES {_LEGAL};

CREATE TABLE runs(
  id TEXT PRIMARY KEY NOT NULL,
  goal TEXT NOT NULL,
  workspace TEXT NOT NULL,
  model TEXT NOT NULL,
  model_kind TEXT NOT NULL,
  config TEXT NOT NULL DEFAULT '',
  scenario TEXT NOT NULL DEFAULT '',
  status TEXT NOT NULL DEFAULT '{RunStatus.PLANNING}',
  began TEXT NOT NULL DEFAULT '{RunStatus.PLANNING}',
  parent TEXT,
  forked_at INTEGER,
  last_seq INTEGER NOT NULL DEFAULT 0,
  owner TEXT NOT NULL DEFAULT '',
  created_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_time ON runs(created_at);

CREATE TABLE events(
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  eid TEXT NOT NULL,
  at REAL NOT NULL,
  type TEXT NOT NULL,
  ref TEXT,
  body TEXT NOT NULL CHECK(json_valid(body)),
  PRIMARY KEY(run_id, seq)
) WITHOUT ROWID;
CREATE INDEX questions ON events(run_id, ref) WHERE ref IS NOT NULL;

CREATE TABLE eval_runs(
  id TEXT PRIMARY KEY NOT NULL,
  scenario TEXT NOT NULL,
  result_json TEXT NOT NULL CHECK(json_valid(result_json)),
  metrics_json TEXT NOT NULL CHECK(json_valid(metrics_json)),
  git_sha TEXT NOT NULL,
  created_at REAL NOT NULL,
  suite TEXT NOT NULL,
  config TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  key TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX eval_runs_by_commit ON eval_runs(suite, git_sha);

CREATE TRIGGER runs_insert BEFORE INSERT ON runs BEGIN
  SELECT RAISE(ABORT, 'E_RUN_EXISTS') WHERE EXISTS (SELECT 1 FROM runs WHERE id = NEW.id);
  SELECT RAISE(ABORT, 'E_NO_EVENT: a fork begins behind an event of its parent') WHERE NOT (NEW.parent IS \
NULL AND NEW.forked_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM events WHERE run_id = NEW.parent AND seq = NEW.forked_at);
  SELECT RAISE(ABORT, 'E_ILLEGAL_TRANSITION: a run begins in {RunStatus.PLANNING}, a fork where its parent \
was')
    WHERE NEW.status IS NOT NEW.began OR NEW.began IS NOT coalesce(
      (SELECT json_extract(body, '$.target') FROM events
        WHERE run_id = NEW.parent AND seq <= NEW.forked_at AND type = 'state_transition' ORDER BY seq DESC \
LIMIT 1),
      (SELECT began FROM runs WHERE id = NEW.parent), '{RunStatus.PLANNING}');
  SELECT RAISE(ABORT, 'E_RUN_TERMINAL') WHERE NEW.began IN ({_TERMINAL});
  SELECT RAISE(ABORT, 'E_SEQ_GAP') WHERE NEW.last_seq IS NOT coalesce(NEW.forked_at, 0);
END;
CREATE TRIGGER runs_delete BEFORE DELETE ON runs BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
CREATE TRIGGER runs_identity BEFORE UPDATE OF id, goal, workspace, model, model_kind, config, scenario, \
began, parent, forked_at, created_at ON runs
BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
CREATE TRIGGER runs_status BEFORE UPDATE OF status ON runs WHEN NEW.status IS NOT OLD.status BEGIN
  SELECT RAISE(ABORT, 'E_ILLEGAL_TRANSITION')
    WHERE NOT EXISTS (SELECT 1 FROM transitions WHERE source = OLD.status AND target = NEW.status);
  SELECT RAISE(ABORT, 'E_NO_EVENT')
    WHERE NOT EXISTS (SELECT 1 FROM events WHERE run_id = OLD.id AND seq = OLD.last_seq AND type = \
'state_transition'
      AND json_extract(body, '$.source') IS OLD.status AND json_extract(body, '$.target') IS NEW.status);
END;
CREATE TRIGGER runs_last_seq BEFORE UPDATE OF last_seq ON runs BEGIN
  SELECT RAISE(ABORT, 'E_SEQ_GAP') WHERE NEW.last_seq IS NOT (SELECT max(seq) FROM events WHERE run_id = \
OLD.id);
END;

CREATE TRIGGER events_insert BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'E_NO_RUN') WHERE NOT EXISTS (SELECT 1 FROM runs WHERE id = NEW.run_id);
  SELECT RAISE(ABORT, 'E_SEQ_GAP') WHERE NEW.seq IS NOT (SELECT last_seq + 1 FROM runs WHERE id = NEW.run_id);
  SELECT RAISE(ABORT, 'E_RUN_TERMINAL') WHERE (SELECT status FROM runs WHERE id = NEW.run_id) IN \
({_TERMINAL});
END;
CREATE TRIGGER events_transition BEFORE INSERT ON events WHEN NEW.type = 'state_transition' BEGIN
  SELECT RAISE(ABORT, 'E_ILLEGAL_TRANSITION') WHERE NOT EXISTS (SELECT 1 FROM transitions
    WHERE source = (SELECT status FROM runs WHERE id = NEW.run_id) AND source = json_extract(NEW.body, \
'$.source')
    AND target = json_extract(NEW.body, '$.target'));
  SELECT RAISE(ABORT, 'E_ILLEGAL_TRANSITION: a key is there twice')
    WHERE (SELECT count(key) > count(DISTINCT key) FROM json_each(NEW.body));
END;
CREATE TRIGGER events_decision BEFORE INSERT ON events WHEN NEW.type = 'approval_given' BEGIN
  SELECT RAISE(ABORT, 'E_NOT_ASKED') WHERE NOT EXISTS
    (SELECT 1 FROM events WHERE run_id = NEW.run_id AND ref IS NOT NULL AND ref = NEW.ref AND type = \
'approval_asked');
  SELECT RAISE(ABORT, 'E_DECIDED') WHERE EXISTS
    (SELECT 1 FROM events WHERE run_id = NEW.run_id AND ref IS NOT NULL AND ref = NEW.ref AND type = \
'approval_given');
END;
CREATE TRIGGER events_after AFTER INSERT ON events BEGIN
  UPDATE runs SET last_seq = NEW.seq WHERE id = NEW.run_id;
  UPDATE runs SET status = json_extract(NEW.body, '$.target') WHERE id = NEW.run_id AND NEW.type = \
'state_transition';
END;
CREATE TRIGGER events_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
CREATE TRIGGER events_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;

CREATE TRIGGER transitions_insert BEFORE INSERT ON transitions BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); \
END;
CREATE TRIGGER transitions_update BEFORE UPDATE ON transitions BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); \
END;
CREATE TRIGGER transitions_delete BEFORE DELETE ON transitions BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); \
END;

CREATE TRIGGER eval_runs_insert BEFORE INSERT ON eval_runs BEGIN
  SELECT RAISE(ABORT, 'E_TRIAL_EXISTS') WHERE EXISTS (SELECT 1 FROM eval_runs WHERE id = NEW.id);
END;
CREATE TRIGGER eval_runs_update BEFORE UPDATE ON eval_runs BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
CREATE TRIGGER eval_runs_delete BEFORE DELETE ON eval_runs BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
"""

# Logs remember how many of these they have run: one that was released is never edited, a new one follows.
_SECOND = """
CREATE INDEX stage_events ON events(run_id, seq) WHERE type = 'stage_finished';
CREATE VIEW stage_checkpoints(run_id, task_id, stage, status, attempt, inputs_hash, outputs_ref, \
error_class, error_message, timestamp) AS
  SELECT run_id, body ->> 'task', body ->> 'stage', body ->> 'status', body ->> 'attempt', body ->> \
'inputs_hash', body ->> 'outputs_ref',
    body ->> 'error_class', body ->> 'error_message', at FROM events WHERE type = 'stage_finished' ORDER BY \
run_id, seq;

CREATE TABLE macros(
  id TEXT PRIMARY KEY NOT NULL,
  workspace_id TEXT NOT NULL,
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  schema_json TEXT NOT NULL CHECK(json_valid(schema_json)),
  steps_json TEXT NOT NULL CHECK(json_valid(steps_json)),
  version INTEGER NOT NULL,
  enabled INTEGER NOT NULL DEFAULT 1 CHECK(enabled IN (0, 1)),
  created_at REAL NOT NULL,
  updated_at REAL NOT NULL,
  UNIQUE(workspace_id, name, version)
) WITHOUT ROWID;

ALTER TABLE runs ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN epoch INTEGER;

CREATE TABLE checkpoints(
  run_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  reason TEXT NOT NULL,
  form TEXT NOT NULL,
  state BLOB NOT NULL,
  created_at REAL NOT NULL,
  PRIMARY KEY(run_id, seq)
);
CREATE TRIGGER checkpoints_insert BEFORE INSERT ON checkpoints BEGIN
  SELECT RAISE(ABORT, 'E_NO_EVENT: a checkpoint is of an event of its run')
    WHERE NOT EXISTS (SELECT 1 FROM events WHERE run_id = NEW.run_id AND seq = NEW.seq);
END;
CREATE TRIGGER checkpoints_update BEFORE UPDATE ON checkpoints BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); \
END;

CREATE TRIGGER runs_epoch BEFORE INSERT ON runs WHEN NEW.epoch IS NOT 0 BEGIN
  SELECT RAISE(ABORT, 'E_EPOCH: a run begins in epoch 0');
END;
CREATE TRIGGER runs_claim BEFORE UPDATE OF owner, epoch ON runs BEGIN
  SELECT RAISE(ABORT, 'E_EPOCH: a run is claimed by raising its epoch by one, and given back without')
    WHERE NOT (NEW.epoch IS OLD.epoch AND NEW.owner IN (OLD.owner, '') OR NEW.epoch IS OLD.epoch + 1 AND \
NEW.owner <> '');
END;
CREATE TRIGGER events_fence BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'E_FENCED') WHERE NEW.epoch IS NOT (SELECT epoch FROM runs WHERE id = NEW.run_id)
    AND NOT (NEW.epoch IS NULL AND NEW.type = 'approval_given');
END;
"""

_THIRD = """
CREATE TABLE eval_scores(
  trial TEXT NOT NULL,
  suite_hash TEXT NOT NULL,
  result_json TEXT NOT NULL CHECK(json_valid(result_json)),
  key TEXT NOT NULL,
  created_at REAL NOT NULL
);
CREATE INDEX eval_scores_by_trial ON eval_scores(trial);
CREATE TRIGGER eval_scores_insert BEFORE INSERT ON eval_scores BEGIN
  SELECT RAISE(ABORT, 'E_NO_TRIAL') WHERE NOT EXISTS (SELECT 1 FROM eval_runs WHERE id = NEW.trial);
  SELECT RAISE(ABORT, 'E_APPEND_ONLY') WHERE EXISTS (SELECT 1 FROM eval_scores WHERE rowid = NEW.rowid);
END;
CREATE TRIGGER eval_scores_update BEFORE UPDATE ON eval_scores BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); \
END;
CREATE TRIGGER eval_scores_delete BEFORE DELETE ON eval_scores BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); \
END;
"""

_FOURTH = """
CREATE TABLE notes(
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  workspace TEXT NOT NULL,
  owner TEXT NOT NULL DEFAULT '',
  same BLOB NOT NULL,
  kind TEXT NOT NULL,
  text TEXT NOT NULL,
  evidence TEXT NOT NULL DEFAULT '',
  tags TEXT NOT NULL DEFAULT '[]' CHECK(json_valid(tags)),
  author TEXT NOT NULL DEFAULT '',
  confidence REAL NOT NULL CHECK(confidence BETWEEN 0 AND 1),
  taint TEXT NOT NULL DEFAULT '',
  stated INTEGER NOT NULL DEFAULT 0,
  run TEXT NOT NULL DEFAULT '',
  event TEXT NOT NULL DEFAULT '',
  at REAL NOT NULL,
  expires REAL,
  uses INTEGER NOT NULL DEFAULT 0,
  replaced_by TEXT NOT NULL DEFAULT '',
  UNIQUE(workspace, owner, same)
);
CREATE INDEX notes_by_run ON notes(workspace, run);
CREATE VIRTUAL TABLE notes_text USING fts5(text, names, before, after, tokenize = 'porter unicode61');
INSERT INTO notes_text(notes_text, rank) VALUES('secure-delete', 1);
CREATE TABLE note_names(number INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY(number, \
kind, name)) WITHOUT ROWID;
CREATE INDEX note_names_by_name ON note_names(name);
CREATE TABLE note_links(
  source INTEGER NOT NULL,
  target INTEGER NOT NULL,
  relation TEXT NOT NULL,
  PRIMARY KEY(source, target, relation)
) WITHOUT ROWID;
CREATE TABLE note_vectors(number INTEGER PRIMARY KEY, model TEXT NOT NULL, vector BLOB NOT NULL);
CREATE TABLE note_sources(number INTEGER NOT NULL, source TEXT NOT NULL, PRIMARY KEY(number, source)) \
WITHOUT ROWID;
CREATE TABLE notes_version(value INTEGER NOT NULL);
INSERT INTO notes_version VALUES (1);
CREATE TABLE notes_forgotten(id TEXT PRIMARY KEY NOT NULL, at REAL NOT NULL) WITHOUT ROWID;

INSERT OR IGNORE INTO notes(id, workspace, same, kind, text, evidence, confidence, taint, run, event, at)
  SELECT 'n' || lower(hex(randomblob(5))), workspace, CAST(lower(trim(text)) AS BLOB),
    CASE WHEN kind IN ('fact', 'decision') OR kind = 'preference' AND said THEN kind ELSE 'fact' END,
    text, evidence, 0.7, CASE WHEN said THEN '' ELSE 'answer' END, run_id, eid, at
  FROM (SELECT runs.workspace, events.run_id, events.eid, events.at, body ->> '$.note.text' AS text, body \
->> '$.note.kind' AS kind,
      coalesce(body ->> '$.note.evidence', '') AS evidence,
      coalesce(body ->> '$.note.evidence', '') <> '' AND instr(lower(runs.goal), lower(body ->> \
'$.note.evidence')) > 0 AS said
    FROM events JOIN runs ON runs.id = events.run_id WHERE events.type = 'memory_stored' AND body ->> \
'$.note.text' <> '')
  ORDER BY at;
INSERT INTO note_sources SELECT number, run FROM notes;
INSERT INTO notes_text(rowid, text, names, before, after) SELECT number, text, kind, '', '' FROM notes;
"""
"""Notes that earlier versions kept in the log are moved; those of unknown origin are not trusted."""

_FIFTH = """
ALTER TABLE events ADD COLUMN hash BLOB;
CREATE TRIGGER events_hash BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'E_HASH: each event carries the hash of its chain') WHERE typeof(NEW.hash) IS NOT \
'blob' OR length(NEW.hash) IS NOT 32;
END;
"""
"""Events of earlier versions keep none: see `kestrel_lab.eventlog.seals.hash_chain`."""

_SIXTH = """
CREATE TABLE file_taints(number INTEGER PRIMARY KEY, run_id TEXT NOT NULL, seq INTEGER NOT NULL);
DROP TRIGGER events_after;
CREATE TRIGGER events_after AFTER INSERT ON events BEGIN
  UPDATE runs SET last_seq = NEW.seq WHERE id = NEW.run_id;
  UPDATE runs SET status = json_extract(NEW.body, '$.target') WHERE id = NEW.run_id AND NEW.type = \
'state_transition';
  INSERT INTO file_taints(run_id, seq) SELECT NEW.run_id, NEW.seq WHERE NEW.type = 'files_tainted';
END;
CREATE TABLE file_trust(content TEXT PRIMARY KEY NOT NULL, path TEXT NOT NULL, at REAL NOT NULL) WITHOUT \
ROWID;
CREATE TABLE tool_flows(
  tool TEXT NOT NULL,
  question TEXT NOT NULL,
  answer INTEGER NOT NULL CHECK(answer IN (0, 1)),
  at REAL NOT NULL,
  PRIMARY KEY(tool, question)
) WITHOUT ROWID;
"""
"""Which events are about files, in the order of all runs; what a person said of files and of tools."""

_SEVENTH = f"""
DROP TRIGGER events_insert;
CREATE TRIGGER events_insert BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'E_NO_RUN') WHERE NOT EXISTS (SELECT 1 FROM runs WHERE id = NEW.run_id);
  SELECT RAISE(ABORT, 'E_SEQ_GAP') WHERE NEW.seq IS NOT (SELECT last_seq + 1 FROM runs WHERE id = NEW.run_id);
  SELECT RAISE(ABORT, 'E_RUN_TERMINAL') WHERE NEW.type IS NOT 'kernel_undone'
    AND (SELECT status FROM runs WHERE id = NEW.run_id) IN ({_TERMINAL});
END;
DROP TRIGGER events_fence;
CREATE TRIGGER events_fence BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'E_FENCED') WHERE NEW.epoch IS NOT (SELECT epoch FROM runs WHERE id = NEW.run_id)
    AND NOT (NEW.epoch IS NULL AND NEW.type IN ('approval_given', 'kernel_undone'));
END;
"""
"""A person may undo a call after the run has ended, in any session."""

_EIGHTH = """
CREATE INDEX notes_by_replacement ON notes(replaced_by) WHERE replaced_by <> '';
CREATE INDEX note_links_by_target ON note_links(target);
"""
"""A note that is forgotten is looked up among those that it replaces and those that link to it."""

_TAKEN_OUT = """
  INSERT INTO kept_taints(number, workspace, body)
    SELECT number, runs.workspace, json_replace(body,
      '$.source', iif(body ->> '$.source' <> '', 'what a run read that was removed', ''),
      '$.read', iif(body ->> '$.read' <> '', 'what a run read that was removed', ''))
    FROM file_taints AS f JOIN events USING(run_id, seq) JOIN runs ON runs.id = f.run_id WHERE f.run_id = \
NEW.run_id AND f.seq > NEW.keep;
  DELETE FROM checkpoints WHERE run_id = NEW.run_id;
  DELETE FROM events WHERE run_id = NEW.run_id AND seq > NEW.keep;
  DELETE FROM runs WHERE id = NEW.run_id AND NEW.keep = 0;
"""
"""Tainted files of a removed run stay tainted: their paths and fingerprints are kept, no text."""

_NINTH = f"""
PRAGMA application_id = {APPLICATION_ID};

CREATE TABLE removals(
  run_id TEXT PRIMARY KEY NOT NULL,
  keep INTEGER NOT NULL CHECK(typeof(keep) = 'integer' AND keep >= 0),
  at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE kept_taints(number INTEGER PRIMARY KEY, workspace TEXT NOT NULL, body TEXT NOT NULL \
CHECK(json_valid(body)));
CREATE TRIGGER removals_insert BEFORE INSERT ON removals BEGIN
  SELECT RAISE(ABORT, 'E_NO_RUN') WHERE NOT EXISTS (SELECT 1 FROM runs WHERE id = NEW.run_id);
  SELECT RAISE(ABORT, 'E_SHARED: a fork that is kept has these events') WHERE EXISTS
    (SELECT 1 FROM runs WHERE parent = NEW.run_id AND forked_at > NEW.keep);
  SELECT RAISE(ABORT, 'E_APPEND_ONLY') WHERE EXISTS (SELECT 1 FROM removals WHERE run_id = NEW.run_id AND \
keep <= NEW.keep);
END;
CREATE TRIGGER removals_update BEFORE UPDATE ON removals BEGIN
  SELECT RAISE(ABORT, 'E_APPEND_ONLY') WHERE NEW.run_id IS NOT OLD.run_id OR NEW.at IS NOT OLD.at OR \
NEW.keep >= OLD.keep;
  SELECT RAISE(ABORT, 'E_SHARED: a fork that is kept has these events') WHERE EXISTS
    (SELECT 1 FROM runs WHERE parent = NEW.run_id AND forked_at > NEW.keep);
END;
CREATE TRIGGER removals_delete BEFORE DELETE ON removals BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
CREATE TRIGGER removals_begin AFTER INSERT ON removals BEGIN {_TAKEN_OUT} END;
CREATE TRIGGER removals_go_on AFTER UPDATE ON removals BEGIN {_TAKEN_OUT} END;
CREATE TRIGGER runs_removed BEFORE INSERT ON runs BEGIN
  SELECT RAISE(ABORT, 'E_REMOVED') WHERE EXISTS (SELECT 1 FROM removals WHERE run_id = NEW.id);
END;
CREATE TRIGGER events_removed BEFORE INSERT ON events WHEN EXISTS (SELECT 1 FROM removals WHERE run_id = \
NEW.run_id) BEGIN
  SELECT RAISE(ABORT, 'E_REMOVED');
END;

DROP TRIGGER runs_delete;
CREATE TRIGGER runs_delete BEFORE DELETE ON runs WHEN NOT EXISTS (SELECT 1 FROM removals WHERE run_id = \
OLD.id AND keep = 0) BEGIN
  SELECT RAISE(ABORT, 'E_APPEND_ONLY');
END;
DROP TRIGGER events_delete;
CREATE TRIGGER events_delete BEFORE DELETE ON events WHEN NOT EXISTS (SELECT 1 FROM removals WHERE run_id = \
OLD.run_id AND keep < OLD.seq)
BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
DROP TRIGGER eval_runs_delete;
CREATE TRIGGER eval_runs_delete BEFORE DELETE ON eval_runs
WHEN NOT EXISTS (SELECT 1 FROM removals WHERE run_id = OLD.result_json ->> '$.run')
BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
DROP TRIGGER eval_scores_delete;
CREATE TRIGGER eval_scores_delete BEFORE DELETE ON eval_scores
WHEN NOT EXISTS (SELECT 1 FROM eval_runs JOIN removals ON run_id = result_json ->> '$.run' WHERE \
eval_runs.id = OLD.trial)
BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
"""
"""A log is recognised by its header; runs named in `removals` are deleted, see `eventlog.removal`."""


def _allow_later(types: str) -> str:
    """Return the script that lets events of these quoted types come after a run's end, from any session."""
    return f"""
DROP TRIGGER events_insert;
CREATE TRIGGER events_insert BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'E_NO_RUN') WHERE NOT EXISTS (SELECT 1 FROM runs WHERE id = NEW.run_id);
  SELECT RAISE(ABORT, 'E_SEQ_GAP') WHERE NEW.seq IS NOT (SELECT last_seq + 1 FROM runs WHERE id = NEW.run_id);
  SELECT RAISE(ABORT, 'E_RUN_TERMINAL') WHERE NEW.type NOT IN ({types})
    AND (SELECT status FROM runs WHERE id = NEW.run_id) IN ({_TERMINAL});
END;
DROP TRIGGER events_fence;
CREATE TRIGGER events_fence BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'E_FENCED') WHERE NEW.epoch IS NOT (SELECT epoch FROM runs WHERE id = NEW.run_id)
    AND NOT (NEW.epoch IS NULL AND NEW.type IN ('approval_given', {types}));
END;
"""


_APPLIED = "'kernel_undone', 'files_applied'"
_TENTH = _allow_later(_APPLIED)
"""A person may take over what a fork changed after the run has ended, in any session."""

_SAID = "'trial_labelled', 'label_undone', 'rubric_edited', 'trial_judged'"
_ELEVENTH = f"""{_allow_later(f"{_APPLIED}, {_SAID}")}
CREATE INDEX labels_and_verdicts ON events(run_id, seq) WHERE type IN ({_SAID});
"""
"""People and judges say what they think of a trial after its run has ended, in any session."""

_LATER = f"{_APPLIED}, {_SAID}, 'run_scanned', 'cluster_named'"
_TWELFTH = f"""{_allow_later(_LATER)}
CREATE INDEX scans ON events(run_id, seq) WHERE type = 'run_scanned';
CREATE INDEX clusters ON events(at) WHERE type = 'cluster_named';
"""
"""Scanners add what they found to a run after its end, and clusters of failures their names."""

_THIRTEENTH = f"""
CREATE TABLE run_texts(
  number INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  upto INTEGER,
  waiting INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX run_texts_waiting ON run_texts(number, upto) WHERE waiting;
CREATE TABLE text_form(form TEXT NOT NULL);
INSERT INTO text_form VALUES ('{FORM}');
CREATE VIRTUAL TABLE run_words USING fts5(terms, content = '', detail = none,
  tokenize = "ascii tokenchars '=~'");
INSERT INTO run_words(run_words, rank) VALUES ('secure-delete', 1);

CREATE TRIGGER runs_text AFTER INSERT ON runs BEGIN
  INSERT INTO run_texts(run_id) VALUES (NEW.id);
END;
CREATE TRIGGER run_texts_update AFTER UPDATE OF upto ON run_texts WHEN NEW.upto IS NOT OLD.upto AND NEW.upto \
IS NOT NULL BEGIN
  INSERT INTO run_words(run_words, rowid, terms) SELECT 'delete', OLD.number, kestrel_terms(OLD.run_id, \
OLD.upto) WHERE OLD.upto IS NOT NULL;
  INSERT INTO run_words(rowid, terms) VALUES (NEW.number, kestrel_terms(NEW.run_id, NEW.upto));
END;
CREATE TRIGGER run_texts_delete BEFORE DELETE ON run_texts WHEN OLD.upto IS NOT NULL BEGIN
  INSERT INTO run_words(run_words, rowid, terms) VALUES ('delete', OLD.number, kestrel_terms(OLD.run_id, \
OLD.upto));
END;
DROP TRIGGER removals_begin;
DROP TRIGGER removals_go_on;
CREATE TRIGGER removals_begin AFTER INSERT ON removals BEGIN
  DELETE FROM run_texts WHERE run_id = NEW.run_id;{_TAKEN_OUT} END;
CREATE TRIGGER removals_go_on AFTER UPDATE ON removals BEGIN
  DELETE FROM run_texts WHERE run_id = NEW.run_id;{_TAKEN_OUT} END;

INSERT INTO run_texts(run_id) SELECT id FROM runs WHERE id NOT IN (SELECT run_id FROM removals) ORDER BY \
created_at, id;
CREATE INDEX eval_runs_by_run ON eval_runs(result_json ->> '$.run', suite, config, scenario, epoch);
"""
"""The index of texts, see `eventlog.text_index`: runs of earlier versions wait in it. A trial of a run."""

_FOURTEENTH = """
CREATE TABLE batch_events(
  number INTEGER PRIMARY KEY,
  batch TEXT NOT NULL,
  at REAL NOT NULL,
  type TEXT NOT NULL,
  body TEXT NOT NULL CHECK(json_valid(body))
);
CREATE INDEX batch_events_by_batch ON batch_events(batch);
CREATE TRIGGER batch_events_insert BEFORE INSERT ON batch_events BEGIN
  SELECT RAISE(ABORT, 'E_APPEND_ONLY') WHERE EXISTS (SELECT 1 FROM batch_events WHERE number = NEW.number);
END;
CREATE TRIGGER batch_events_update BEFORE UPDATE ON batch_events BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); \
END;
CREATE TRIGGER batch_events_delete BEFORE DELETE ON batch_events WHEN OLD.type <> 'answered' BEGIN
  SELECT RAISE(ABORT, 'E_APPEND_ONLY');
END;
"""
"""What happened to batches at a provider, see `evals.execution.batch_log`. Answers are kept until the trials
that asked are stored; then the runs have them.
"""

_FIFTEENTH = f"""
DROP TRIGGER events_insert;
DROP TRIGGER events_fence;
DROP TRIGGER events_hash;
DROP TRIGGER events_removed;
DROP TRIGGER events_after;
CREATE TRIGGER events_insert BEFORE INSERT ON events BEGIN
  SELECT CASE
    WHEN EXISTS (SELECT 1 FROM removals WHERE run_id = NEW.run_id) THEN RAISE(ABORT, 'E_REMOVED')
    WHEN runs.id IS NULL THEN RAISE(ABORT, 'E_NO_RUN')
    WHEN NEW.seq IS NOT runs.last_seq + 1 THEN RAISE(ABORT, 'E_SEQ_GAP')
    WHEN runs.status IN ({_TERMINAL}) AND NEW.type NOT IN ({_LATER}) THEN RAISE(ABORT, 'E_RUN_TERMINAL')
    WHEN typeof(NEW.hash) IS NOT 'blob' OR length(NEW.hash) IS NOT 32
      THEN RAISE(ABORT, 'E_HASH: each event carries the hash of its chain')
  END FROM (SELECT 1) LEFT JOIN runs ON runs.id = NEW.run_id;
END;
CREATE TRIGGER events_fence BEFORE INSERT ON events BEGIN
  SELECT RAISE(ABORT, 'E_FENCED') WHERE NEW.epoch IS NOT (SELECT epoch FROM runs WHERE id = NEW.run_id)
    AND NOT (NEW.epoch IS NULL AND NEW.type IN ('approval_given', {_LATER}));
END;
CREATE TRIGGER events_after AFTER INSERT ON events BEGIN
  UPDATE runs SET last_seq = NEW.seq WHERE id = NEW.run_id;
  UPDATE runs SET status = json_extract(NEW.body, '$.target') WHERE id = NEW.run_id AND NEW.type = \
'state_transition';
END;
CREATE TRIGGER events_tainted AFTER INSERT ON events WHEN NEW.type = 'files_tainted' BEGIN
  INSERT INTO file_taints(run_id, seq) VALUES (NEW.run_id, NEW.seq);
END;
"""
"""The same rules of an event in one look at its run: each trigger was a program of its own for each event.
The fence stays by itself, and last, which SQLite asks first: a session that lost its run is told that.
"""

_SIXTEENTH = f"""
CREATE TABLE heads(
  source TEXT NOT NULL,
  name TEXT NOT NULL,
  git_sha TEXT NOT NULL,
  config TEXT NOT NULL,
  sealed INTEGER NOT NULL DEFAULT 0,
  removed INTEGER NOT NULL DEFAULT 0,
  hash BLOB NOT NULL DEFAULT (zeroblob(32)),
  PRIMARY KEY(source, name, git_sha, config)
) WITHOUT ROWID;
{"".join(map(seal_rules, SEALED))}
DROP INDEX eval_runs_by_commit;
CREATE INDEX eval_runs_by_commit ON eval_runs(suite, git_sha, config, hash);
CREATE TRIGGER heads_insert BEFORE INSERT ON heads BEGIN
  SELECT RAISE(ABORT, 'E_APPEND_ONLY') WHERE NEW.sealed IS NOT 0 OR NEW.removed IS NOT 0
    OR NEW.hash IS NOT zeroblob(32) OR EXISTS (SELECT 1 FROM heads
      WHERE source = NEW.source AND name = NEW.name AND git_sha = NEW.git_sha AND config = NEW.config);
END;
CREATE TRIGGER heads_update BEFORE UPDATE ON heads
WHEN NEW.source IS NOT OLD.source OR NEW.name IS NOT OLD.name OR NEW.git_sha IS NOT OLD.git_sha
  OR NEW.config IS NOT OLD.config OR NOT (NEW.sealed IS OLD.sealed + 1 AND NEW.removed IS OLD.removed
    OR NEW.sealed < OLD.sealed AND NEW.sealed + NEW.removed IS OLD.sealed + OLD.removed)
BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
CREATE TRIGGER heads_delete BEFORE DELETE ON heads BEGIN SELECT RAISE(ABORT, 'E_APPEND_ONLY'); END;
"""
"""Each result carries its hash, and each evaluation has a head: see `eventlog.seals.row_seals`."""

MIGRATIONS: tuple[str, ...] = (
    _FIRST,
    _SECOND,
    _THIRD,
    _FOURTH,
    _FIFTH,
    _SIXTH,
    _SEVENTH,
    _EIGHTH,
    _NINTH,
    _TENTH,
    _ELEVENTH,
    _TWELFTH,
    _THIRTEENTH,
    _FOURTEENTH,
    _FIFTEENTH,
    _SIXTEENTH,
)
"""Scripts that bring a database from version n (its index) to n + 1; never edited once released."""
