"""Studies: what a task measures beyond the rules, one file a task."""
