"""Drawings of plans: one arrangement, shown by the panel, as SVG and as a figure; knows steps by name, needs
and state only.
"""
