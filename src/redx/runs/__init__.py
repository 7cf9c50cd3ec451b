"""Runs: presets, the run folder, the pipeline, edits, diffs, checkpoints and inspection."""
