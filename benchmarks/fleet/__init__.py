"""A simulated fleet of devices: what the decision of gpuedge would do in the field."""
