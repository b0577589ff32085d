"""What kestrel_lab costs beside what it runs, next to other tools: `python -m bench --out FOLDER`."""
