"""Experiments that several tasks share: the price of safety, and experts that are added and removed."""
