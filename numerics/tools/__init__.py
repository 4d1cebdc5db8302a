"""Tools for dumps of real runs."""
