"""From finished runs to the paper's tables, figures and report."""
