"""xbench: is a model the same, how fast, where does its time go, and why does it differ."""

__version__ = "0.1.0"
