"""What the hunts for wrong answers have in common: a process for the device, counts that last, and shrinking."""
