"""What files declare, and what of it is done."""
