"""These files are copied out of the repository and run there, by tests/test_plugin.py and .ci/run."""

collect_ignore_glob = ["test_*.py"]
