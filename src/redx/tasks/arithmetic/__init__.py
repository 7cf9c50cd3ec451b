"""Arithmetic in words: questions, sentences, programs, decomposers, and the tasks made of them."""
