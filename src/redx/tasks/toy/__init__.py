"""The toy experiments: experts that add numbers, and what happens when they are mixed."""
