"""gpuedge and its peers on the same work: models, processes, cells, the page."""
