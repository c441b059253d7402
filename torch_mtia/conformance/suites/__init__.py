"""The suites, one file each: modules of pytest, with the device under test as the fixture `device`."""
