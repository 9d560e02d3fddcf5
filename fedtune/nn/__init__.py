"""Networks, layers, and the mathematics that several papers share."""
