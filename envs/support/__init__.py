"""Help a customer who holds tools too."""
