"""Data sets: each loader returns inputs, a 0/1 label matrix and class names."""
