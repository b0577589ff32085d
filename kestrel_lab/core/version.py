"""The version of this package: that of the tag it was built from."""

__all__ = ["__version__"]

try:
    from kestrel_lab._version import __version__
except ImportError:  # a checkout that nobody built or installed
    __version__ = "0+unknown"
