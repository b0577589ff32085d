"""The version of this package: that of the tag it was built from."""

__all__ = ["RELEASE", "__version__"]

try:
    from kestrel_lab._version import __version__
except ImportError:  # a checkout that nobody built or installed
    __version__ = "0+unknown"

RELEASE = __version__.partition("+")[0].partition(".dev")[0]
"""The release that this is, or that it is on the way to: what was measured with it is comparable throughout.
"""
