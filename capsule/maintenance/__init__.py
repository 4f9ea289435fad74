"""The maintenance of a store: examining it, repairing it, and merging conflict copies."""
