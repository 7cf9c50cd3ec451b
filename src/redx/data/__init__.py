"""Datasets as tensors: splits, tables, arrays, texts, augmentation, clusters."""
