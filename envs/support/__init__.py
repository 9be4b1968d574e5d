"""Help a customer who has tools too."""
