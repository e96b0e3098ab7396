"""The Spark data source ``circuit``: streams into the inputs of a running circuit, and its outputs as streams."""
