"""A user's own data: texts from a table (`jsonl`), or features from an array file (`features`)."""
