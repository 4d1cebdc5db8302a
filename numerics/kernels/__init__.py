"""Fast log-probs whose bits are the same everywhere: one definition, an executable specification, a CPU backend."""
