"""Drawings of plans: one layout for the panel, SVG and figures; knows ids, dependencies and states only."""
