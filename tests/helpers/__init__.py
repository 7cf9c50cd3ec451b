"""What several test files share: commands, random parts, small runs, tiny language models."""
