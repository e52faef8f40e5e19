"""Training: the loop of Algorithm 1 and what it needs."""
