"""Experiments that several tasks share: risk control, and experts that are added and removed."""
