"""A cluster of emulated hosts on one machine, to test and measure on."""
