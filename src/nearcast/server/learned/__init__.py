"""What the pipeline learned, loaded by a running broker: policies and histograms."""
