"""The care of a store: examining it, mending it, and taking in conflict copies."""
