"""Examples as tensors: datasets, splits, tables, arrays, texts, augmentation, clusters."""
