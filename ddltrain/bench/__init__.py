"""Measures all-reduces side by side, and against what the links and the memory allow."""
