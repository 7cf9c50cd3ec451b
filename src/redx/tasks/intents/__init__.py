"""CLINC150: the intents of ten domains."""
