"""LoRA adapters as experts of a frozen language model: a library, composition, generation, training, evaluation."""
