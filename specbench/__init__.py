"""Paired benchmarking of speculative decoding engines."""

__version__ = "0.1.0"
