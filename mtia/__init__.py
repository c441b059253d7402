"""What Inductor and Triton import for the device type `mtia`; everything else is in the package torch_mtia."""
