"""Conditions, paths into JSON and templates: strict, without evaluation of code."""
