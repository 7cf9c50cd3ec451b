"""Frozen encoders: image networks, pretrained language models, and where these come from."""
