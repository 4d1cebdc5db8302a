"""The suite: properties, the runner that holds implementations to them, and the evidence that they see faults."""
