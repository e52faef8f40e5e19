"""Top-K Pairwise Ranking (TKPR): measures, losses and benchmarks for multi-label ranking."""
