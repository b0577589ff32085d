"""Answers held against what is there: claims, evidence, deterministic checks. No model is asked here."""
