"""What PyTorch's Inductor imports for the device type `mtia`; everything else is in the package torch_mtia."""
