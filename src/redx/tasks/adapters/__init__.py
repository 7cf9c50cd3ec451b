"""The task `adapters`: LoRA adapters of one language model as experts."""
