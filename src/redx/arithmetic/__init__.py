"""Arithmetic in words: questions, made and recognised in any wording."""
