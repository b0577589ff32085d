"""Adapters run other agents' programs on a goal and record their messages as events of the run."""
