"""Benchmarks: every row runs redx and its opponents alternately on the same machine and gives the ratio of times."""
