"""Ranks, and what they send each other."""
