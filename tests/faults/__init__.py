"""Damaged and hostile files: mutations, and the fuzzer that feeds them to every reader of redx."""
