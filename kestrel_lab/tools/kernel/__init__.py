"""Python in a live kernel: preview, adoption, execution and undo; and separate kernels without a notebook."""
