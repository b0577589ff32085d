"""How much kestrel_lab costs beside what it runs, measured next to other tools: `python -m bench --out
FOLDER`.
"""
