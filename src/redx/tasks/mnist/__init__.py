"""MNIST in five label-pair domains."""
