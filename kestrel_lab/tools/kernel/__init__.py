"""Python in the live kernel: preview, adoption, execution and undo of code, and a kernel of its own off the
notebook.
"""
