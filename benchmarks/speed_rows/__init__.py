"""The rows of benchmarks/speed.py: redx and its opponents, measured in turn."""
