"""Adapters to RL frameworks, one module each; a framework is imported only when it is used."""
